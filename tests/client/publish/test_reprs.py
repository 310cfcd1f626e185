"""What messages say of their arguments is what Celery says, to the letter."""

from __future__ import annotations

import random

import pytest
from celery.utils.saferepr import saferepr

from celery_batch.client.publish.message import fast_repr

PLAIN = [0, -7, 1.5, float("nan"), True, None, "", "a", "it's", 'say "no"', "ä\n", "x" * 60]

#: What only Celery's own way knows.
OTHERS = ["x" * 2000, b"raw", {"a": [1]}, [[1, [2, [3]]]], (1,), {1}, object()]


def column(choose):
    """Return a list of plain values, or one with something else in it."""
    values = [1, 2, 3] if choose.random() < 0.3 else PLAIN
    found = [choose.choice(values) for _ in range(choose.randrange(70))]
    if choose.random() < 0.2:
        found.append(choose.choice(OTHERS))
    return found


@pytest.mark.parametrize("limit", [None, 0, 5, 20, 100, 1024])
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_arguments_are_described_as_celery_does(limit, levels):
    """Calls and chunks of any arguments, cut where they are too long."""
    choose = random.Random(7)  # noqa: S311 (chance that can be repeated)
    for _ in range(200):
        parts = [choose.choice([column(choose), *PLAIN, *OTHERS]) for _ in range(3)]
        same = column(choose)
        for args in ([column(choose)], [same, same], [[], []], [], parts, parts[:1]):
            for value in (args, tuple(args)):
                assert saferepr(value, limit, levels) == fast_repr(value, limit, levels)
