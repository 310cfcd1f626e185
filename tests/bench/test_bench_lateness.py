"""How much later than first come, first served requests leave, as the bench derives it."""

from __future__ import annotations

import pytest

from bench.policies.lateness import most_late
from celery_batch.batching.cost import CostLimits


@pytest.mark.parametrize("overtaken", [0, 1, 9])
def test_batches_after_first_come_first_served(overtaken):
    """The latest request counts: by how many batches it left after its turn."""
    limits = CostLimits(1024, 8.0, is_padded=True)
    batches = [overtaken, *(each for each in range(12) for _ in range(8 - (each == overtaken)))]
    costs, began = [1.0] * len(batches), list(map(float, batches))

    assert overtaken == most_late(costs, [-1.0] * len(batches), began, limits)


def test_what_has_not_come_is_not_late():
    """A request is not late for the batches that began before it came."""
    limits = CostLimits(1024, 2.0, is_padded=True)

    assert 0 == most_late([1.0] * 4, [0.0, 0.0, 5.0, 5.0], [0.0, 0.0, 6.0, 6.0], limits)
