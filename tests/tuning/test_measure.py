"""How a model is measured: which sizes, how often, and where it ends."""

from __future__ import annotations

import math

import pytest

from celery_batch.errors import OutOfMemory
from celery_batch.tuning.measure import Plan, Run, measure

SIZES = (1, 2, 4, 8, 16, 32, 64)


class Lab:
    """
    A model without a clock: what a batch takes is a sum.

    Args:
        fixed: Seconds of any batch.
        each: Seconds of an item.
        room: Most items that fit into memory.
    """

    def __init__(self, fixed=0.01, each=0.001, room=math.inf):
        self.fixed, self.each, self.room = fixed, each, room
        self.runs = []

    def __call__(self, size):
        """Run a batch."""
        self.runs.append(size)
        if size > self.room:
            raise OutOfMemory(f"{size} items do not fit\nand so on")
        return Run(self.fixed + self.each * size, memory=1000 * size)


def measured(lab, **options):
    """Measure a lab, without much ado."""
    plan = Plan(**{"sizes": SIZES, "seconds": 0.1, **options})
    return measure(lab, plan, lambda _: None)


def test_every_size_is_measured_in_turn():
    """Round after round, there and back, so that a drift affects all sizes."""
    lab = Lab(fixed=0.01, each=0.01)
    curve = measured(lab, sizes=(1, 2), seconds=0.001)
    rounds = [
        size for n, size in enumerate(lab.runs[12:]) if n == 0 or size != lab.runs[12 + n - 1]
    ]

    assert [1, 2] == curve.sizes
    assert "" == curve.cap
    assert [1, 2, 1, 2, 1, 2] == rounds  # five rounds; two that meet in the middle look like one


def test_times_and_memory_are_those_that_were_seen():
    """The first run of a size, which may load kernels, does not count."""
    lab = Lab()
    slow = iter([True] + 1000 * [False])

    def run(size):
        seen = lab(size)
        return Run(9.0) if next(slow) else seen

    curve = measured(run, sizes=(4,))
    (point,) = curve.points

    assert {0.014} == {round(seconds, 9) for seconds in point.seconds}
    assert 4000 == point.memory
    assert round(4 / 0.014) == round(point.rate)


def test_memory_ends_it():
    """What does not fit is the cap, with the model's words, and what fits is measured."""
    lab = Lab(room=11)
    curve = measured(lab)

    assert [1, 2, 4, 8] == curve.sizes
    assert "a batch of 16 does not fit into memory (16 items do not fit)" == curve.cap
    assert 1 == lab.runs.count(16)
    assert 32 not in lab.runs


def test_a_model_that_fits_nothing_has_no_curve():
    """Its error is raised as it is."""
    with pytest.raises(OutOfMemory, match="1 items do not fit"):
        measured(Lab(room=0))


def test_memory_that_is_short_only_later_ends_it_too():
    """What fitted once and not again is left out, and so is what is larger."""
    lab = Lab()

    def run(size):
        if len(lab.runs) > 40:
            lab.room = 20
        return lab(size)

    curve = measured(run, seconds=1.0)

    assert [1, 2, 4, 8, 16] == curve.sizes
    assert "a batch of 32 does not always fit into memory (32 items do not fit)" == curve.cap


def test_a_batch_that_takes_too_long_ends_it():
    """Beyond the target larger ones are of no interest; the first beyond shows where it is."""
    curve = measured(Lab(), longest=0.02)

    assert [1, 2, 4, 8, 16] == curve.sizes
    assert "a batch of 16 takes 26 ms already" == curve.cap


def test_batches_that_compute_fewer_items_end_it():
    """If time grows faster than the size, the measurement ends; two worse sizes are certain."""

    def run(size):
        return Run(0.01 * max(size / 8, 1) ** 2)

    curve = measured(run)

    assert [1, 2, 4, 8, 16, 32] == curve.sizes
    assert "batches of 32 items compute fewer items a second than those of 8" == curve.cap


def test_batches_that_compute_less_cost_end_it():
    """Where cost limits batches, the rate is of cost, and the reason says so."""

    def run(size):
        return Run(0.01 * max(size / 8, 1) ** 2, cost=10.0 * size)

    curve = measured(run)

    assert "batches of 32 items compute less cost a second than those of 8" == curve.cap


def test_sizes_that_were_asked_for_are_all_measured():
    """Only memory can say no to them."""
    curve = measured(Lab(fixed=0, each=1.0), longest=0.5, asked_for=True, sizes=(3, 5))

    assert [3, 5] == curve.sizes


@pytest.mark.parametrize(("seconds", "least"), [(0.0001, 5), (4.0, 10)])
def test_quick_sizes_are_run_more_often(seconds, least):
    """As long as there is time, and five rounds at least."""
    lab = Lab(fixed=0.0, each=0.01)
    points = {each.size: len(each.seconds) for each in measured(lab, seconds=seconds).points}

    assert least <= points[64]
    assert points[64] < points[1] <= 8 * points[64]


def test_a_quick_model_is_not_run_for_ever():
    """What a call takes beside the model is not counted, so calls are bounded."""
    lab = Lab(fixed=1e-6, each=0.0)
    measured(lab, seconds=100.0)

    assert len(lab.runs) < 30_000
