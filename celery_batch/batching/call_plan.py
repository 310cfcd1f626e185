"""The calls of the model in which one batch runs, where the cost of a call is limited."""

from __future__ import annotations

from collections.abc import Sequence

from celery_batch.batching.cost import CostLimits
from celery_batch.batching.shapes import most_rows, round_up

__all__ = ["CallPlan"]


class CallPlan:
    """The order in which the rows of a batch run, and how many of them at once."""

    # A batch within the limits runs in one call, as it is.  One that is larger, such as a chunk,
    # runs in several; where rows are padded, each has rows of similar lengths.

    def __init__(
        self,
        costs: Sequence[float | None],  # of each row; None for one that does not run
        limits: CostLimits,
        filler: float | None = None,  # of the row that fills calls up; None for the last one
    ) -> None:
        known = {index: cost for index, cost in enumerate(costs) if cost is not None}
        order = [*known]
        self._limits, self._filler = limits, filler
        self._costs = [*known.values()]
        if limits.is_padded and self.count(0, limits) < len(order):
            order.sort(key=known.__getitem__)
            self._costs.sort()
        #: The indexes of the rows, in the order in which they run.
        self.order = tuple(order)

    def cost(self, part: range) -> float:
        """Return what a call with these rows costs, which are positions in the order."""
        costs = self._costs[part.start : part.stop]
        return self._of_call(max(costs), sum(costs), costs[-1], len(costs))

    def sum(self, part: range) -> float:
        """Return what these rows cost if none is padded."""
        return sum(self._costs[part.start : part.stop])

    def count(self, start: int, limits: CostLimits) -> int:
        """Return how many rows from a position on fit into one call, at least 1."""
        if limits.sizes:
            return self._count_filled(start, limits)
        longest = total = 0.0
        count = 0
        for cost in self._costs[start : start + limits.rows]:
            longest, total = max(longest, cost), total + cost
            if count and (longest * (count + 1) if limits.is_padded else total) > limits.cost:
                break
            count += 1
        return max(count, 1)

    def _count_filled(self, start: int, limits: CostLimits) -> int:
        """Return how many rows fit into a call that is filled up to its size."""
        longest = total = most = 0.0
        count = 1
        end = start + most_rows(limits.sizes, limits.rows)
        for rows, cost in enumerate(self._costs[start:end], 1):
            longest, total = max(longest, cost), total + cost
            call = self._of_call(longest, total, cost, rows)
            most = most or max(limits.cost, call)
            if (limits.of_call(longest, rows) if limits.is_padded else total) > most:
                break  # and with more rows it would cost no less
            if call <= most:
                count = rows
        return count

    def _of_call(self, longest: float, total: float, last: float, rows: int) -> float:
        """Return what a call costs, with the rows that fill it up to its size."""
        limits = self._limits
        missing = round_up(limits.sizes, rows) - rows
        filler = last if self._filler is None else self._filler
        if limits.is_padded:
            return limits.of_call(max(longest, filler) if missing else longest, rows)
        return total + missing * filler
