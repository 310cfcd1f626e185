"""The calls of the model in which one batch runs, where the cost of a call is limited."""

from __future__ import annotations

from collections.abc import Sequence

from celery_batch.batching.cost import CostLimits

__all__ = ["CallPlan"]


class CallPlan:
    """
    The order in which the rows of a batch run, and how many of them at once.

    A batch within the limits runs in one call, as it is.  One that is larger, such as a chunk,
    runs in several; where rows are padded, each has rows of similar lengths.

    Args:
        costs: Of each row; None for a row that does not run.
        limits: The largest call; a row that costs more runs by itself.
    """

    def __init__(self, costs: Sequence[float | None], limits: CostLimits) -> None:
        known = {index: cost for index, cost in enumerate(costs) if cost is not None}
        order = [*known]
        self._limits = limits
        self._costs = [*known.values()]
        if limits.is_padded and self.count(0, limits) < len(order):
            order.sort(key=known.__getitem__)
            self._costs.sort()
        #: The indexes of the rows, in the order in which they run.
        self.order = tuple(order)

    def cost(self, part: range) -> float:
        """Return what a call with these rows costs, which are positions in the order."""
        costs = self._costs[part.start : part.stop]
        return max(costs) * len(costs) if self._limits.is_padded else sum(costs)

    def sum(self, part: range) -> float:
        """Return what these rows cost if none is padded."""
        return sum(self._costs[part.start : part.stop])

    def count(self, start: int, limits: CostLimits) -> int:
        """Return how many rows from a position on fit into one call, at least 1."""
        longest = total = 0.0
        count = 0
        for cost in self._costs[start : start + limits.rows]:
            longest, total = max(longest, cost), total + cost
            if count and (longest * (count + 1) if limits.is_padded else total) > limits.cost:
                break
            count += 1
        return max(count, 1)
