"""What can be read off the times of batches."""

from __future__ import annotations

import pytest

from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import CostLine, Curve, Point

CURVE = Curve((Point(1, (1.0, 1.0, 3.0)), Point(4, (2.0, 4.0)), Point(8, (8.0,))))


@pytest.mark.parametrize(
    ("size", "seconds"), [(1, 1.0), (4, 3.0), (2, 1.0 + 2 / 3), (8, 8.0), (6, 5.5), (16, 16.0)]
)
def test_sizes_in_between_take_time_in_between(size, seconds):
    """And beyond the largest an item takes what it takes there."""
    assert pytest.approx(seconds) == CURVE.seconds(size)


@pytest.mark.parametrize(
    ("runs", "a", "b"),
    [
        ([(10, 1.2), (100, 3.0), (200, 5.0)], 1.0, 0.02),
        ([(10, 1.0), (10, 1.0)], 1.0, 0.0),
        ([(0, 1.0)], 1.0, 0.0),
        ([(10, 5.0), (100, 1.0)], 1.153846, 0.0),
        ([(10, 1.0), (20, 4.0)], 0.0, 0.111111),
        ([(10, 0.0)], 0.0, 0.0),
    ],
    ids=["line", "one cost", "no cost", "falling", "steep", "no time"],
)
def test_line_of_cost(runs, a, b):
    """Neither part is below zero, and each run is known by its ratio to the line."""
    line = CostLine.fit(runs)

    assert pytest.approx((a, b), abs=1e-6) == (line.a, line.b)
    assert len(runs) == len(line.ratios)
    assert max(cost for cost, _ in runs) == line.highest


def test_one_slow_run_hardly_moves_the_line():
    """Errors count as parts of what a run took."""
    line = CostLine.fit([*[(cost, 1 + 0.02 * cost) for cost in range(10, 200, 10)], (100, 60.0)])

    assert pytest.approx(1.0, rel=0.1) == line.a
    assert pytest.approx(3.0, rel=0.1) == line.seconds(100)
    assert 15 < line.seconds(100, 1.0) / line.seconds(100)


def test_time_of_the_largest_batch():
    """By cost where that limits a batch, else by rows."""
    curve = Curve((Point(1, (1.0,)), Point(4, (2.0,))), line=CostLine(1.0, 0.5, (1.0,), 8.0))

    assert 5.0 == curve.full(BatchPolicy(4, max_batch_cost=8.0))
    assert 2.0 == curve.full(BatchPolicy(4))
    assert 1.0 == curve.scatter
