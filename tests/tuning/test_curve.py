"""What can be read off the times of batches."""

from __future__ import annotations

import pytest

from celery_batch.tuning.curve import Curve, Point

CURVE = Curve((Point(1, (1.0, 1.0, 3.0)), Point(4, (2.0, 4.0)), Point(8, (8.0,))))


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 2.0), (0.5, 3.0), (0.75, 3.5), (1.0, 4.0)])
def test_quantiles_lie_between_what_was_seen(share, seconds):
    """From the shortest to the longest."""
    assert seconds == CURVE.points[1].quantile(share)


@pytest.mark.parametrize(
    ("size", "seconds"), [(1, 1.0), (4, 3.0), (2, 1.0 + 2 / 3), (8, 8.0), (6, 5.5), (16, 16.0)]
)
def test_sizes_in_between_take_time_in_between(size, seconds):
    """And beyond the largest an item takes what it takes there."""
    assert pytest.approx(seconds) == CURVE.seconds(size)


def test_before_the_smallest_size_nothing_is_cheaper():
    """A batch of 1 takes what the smallest took, where 1 was not measured."""
    assert 3.0 == Curve((Point(4, (3.0,)),)).seconds(1)


def test_bad_luck_is_slower():
    """A batch takes what such batches took, at its luck."""
    assert [1.0, 1.0, 3.0] == [CURVE.seconds(1, luck) for luck in (0.0, 0.5, 1.0)]


def test_capacity_is_the_best_rate_of_the_sizes_allowed():
    """Larger batches may be slower; they need not be filled."""
    assert [1.0, 4 / 3, 4 / 3] == [CURVE.capacity(size) for size in (1, 4, 8)]
