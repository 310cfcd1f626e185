"""Numbers formatted for people."""

from __future__ import annotations

import numpy as np
import pytest

from celery_batch.formatting import brief, figure, number, with_article


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1234.5, "1,230"), (123.4, "123"), (12.34, "12.3"), (0.012345, "0.0123"), (0, "0")],
)
def test_amounts_have_three_digits(amount, text):
    """More would say more than was measured."""
    assert text == number(amount)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1234.5, "1,230 s"), (1.5, "1.5 s"), (0.9996, "1 s"), (0.05, "50 ms"),
        (0.00137, "1.37 ms"), (0.00099996, "1 ms"), (8.26e-6, "8.26 µs"), (0.0, "0 s"),
    ],
)  # fmt: skip
def test_times_have_the_unit_that_suits_them(seconds, text):
    """And no powers of ten, nor noughts to be counted."""
    assert text == figure(seconds)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((3, 224), "float32"), "ndarray(float32, [3, 224])"),
        ([*range(1000)], "[0, 1, 2, 3, 4, 5, ...]"),
        ("a" * 100, "'aaaaaaaaaaaa...aaaaaaaaaaaaa'"),
    ],
)
def test_values_are_shortened(value, text):
    """A message has no room for all of them."""
    assert text == brief(value)


@pytest.mark.parametrize("name", ["a str", "a dict", "an int", "an object", "an OSError", "a UUID"])
def test_types_have_their_article(name):
    """As they are spoken."""
    assert name == with_article(name.split()[1])
