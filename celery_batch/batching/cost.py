"""
How much work a batch is, where that is not its number of rows.

Rule 1: a request has a cost, such as its number of tokens. The cost of a batch is the sum; or,
        where the model pads all rows to the longest, the longest row's times the rows.
Rule 2: a batch has at most ``max_batch_size`` rows and costs at most ``max_batch_cost``. A
        request that is larger than that runs by itself.
Rule 3: where calls of the model have fixed sizes and lengths, a call costs what it costs when it
        is padded up to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from operator import mul
from typing import Any

from celery_batch.batching.shapes import round_down, round_up

__all__ = ["CallCost", "CostLimits", "Load"]


@dataclass(slots=True)
class CallCost:
    """What a call of the model costs beside its rows, in their unit; infinite while unknown."""

    value: float = inf


@dataclass(frozen=True, slots=True)
class CostLimits:
    """The largest batch."""

    rows: int
    cost: float
    is_padded: bool  # whether all rows cost as much as the longest
    sizes: tuple[int, ...] = ()  # the numbers of rows that calls have; none for any number
    lengths: tuple[int, ...] = ()  # what rows are padded to, in the unit of the cost

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it, as is done with each batch, at half the cost."""
        return CostLimits, (self.rows, self.cost, self.is_padded, self.sizes, self.lengths)

    @property
    def of_call(self) -> Callable[[float, int], float]:
        """Takes the cost of the longest row, and the rows that are padded to it; returns theirs."""
        return self._of_shape if self.sizes or self.lengths else mul

    def _of_shape(self, longest: float, rows: int) -> float:
        return round_up(self.lengths, longest) * round_up(self.sizes, rows)

    def most_rows(self, longest: float) -> int:
        """Return how many rows fit if the longest costs that much; 0 if it does not fit alone."""
        if self.lengths:
            longest = round_up(self.lengths, longest)
        if longest * self.rows <= self.cost:
            return self.rows
        return round_down(self.sizes, int(self.cost // longest))


class Load:
    """The rows of a batch that is being formed, and their cost."""

    def __init__(self, limits: CostLimits) -> None:
        self._limits, self._of_call = limits, limits.of_call
        self.rows = 0
        #: The cost of the longest row; where nothing is padded, of the largest request.
        self.longest = 0.0
        #: What all rows cost if none were padded.
        self.work = 0.0
        #: Whether a request did not fit, or none can.
        self.is_full = False

    @property
    def cost(self) -> float:
        """What the rows cost together."""
        return self._of_call(self.longest, self.rows) if self._limits.is_padded else self.work

    def offer(self, request: Any) -> bool:
        """Add a request if it fits, or is the first; return whether it does."""
        return bool(self.take_from((request,)))

    def take_from(self, requests: Iterable[Any]) -> list[Any]:
        """Add requests, or entries, until one does not fit; return those, at least the first."""
        limits, of_call, is_padded = self._limits, self._of_call, self._limits.is_padded
        most_rows, most_cost = limits.rows, limits.cost
        rows, longest, work = self.rows, self.longest, self.work
        added: list[Any] = []
        for request in requests:
            own_rows, cost = request.rows, request.cost
            all_rows = rows + own_rows
            longest_of_all = cost if cost > longest else longest  # noqa: FURB136 (half the time)
            if is_padded:
                all_work = work + cost * own_rows
                all_cost = of_call(longest_of_all, all_rows)
            else:
                all_cost = all_work = work + cost
            if rows and (all_rows > most_rows or all_cost > most_cost):
                self.is_full = True
                break
            rows, longest, work = all_rows, longest_of_all, all_work
            added.append(request)
        self.rows, self.longest, self.work = rows, longest, work
        if rows >= most_rows:
            self.is_full = True
        elif rows and not self.is_full:
            can_grow = of_call(longest, rows + 1) <= most_cost if is_padded else work < most_cost
            self.is_full = not can_grow
        return added
