"""How much later than first come, first served requests leave."""

from __future__ import annotations

from collections.abc import Sequence

from celery_batch.batching.batch import Request
from celery_batch.batching.cost import CostLimits, Load

__all__ = ["most_late"]


def most_late(
    costs: Sequence[float],
    arrived: Sequence[float],
    began: Sequence[float],
    limits: CostLimits,
) -> int:
    """
    Return how many batches after first come, first served the latest request left.

    That order takes, with each batch, what had arrived when the batch before began.

    Args:
        costs: Of the requests, in the order of their arrival.
        arrived: When each arrived.
        began: When the batch of each began.
        limits: The largest batch.
    """
    starts = sorted(set(began))
    numbers = {start: number for number, start in enumerate(starts)}
    left = [numbers[start] for start in began]
    late = at = 0
    for number, _ in enumerate(starts):
        load, until = Load(limits), starts[max(number - 1, 0)]
        while at < len(costs) and (left[at] < number or arrived[at] <= until):
            has_left = not load.rows and left[at] < number
            if not has_left and not load.offer(Request(None, 0.0, cost=costs[at])):
                break
            late = max(late, left[at] - number)
            at += 1
    return late
