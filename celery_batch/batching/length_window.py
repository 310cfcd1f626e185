"""
Waiting requests in the order of their lengths, and the slices of them that are batches.

All rows of a batch are padded to its longest.  So its requests are neighbours in the window, and
it is told by the bounds of a slice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

from celery_batch.batching.batch import Request
from celery_batch.batching.cost import CostLimits, Load

__all__ = [
    "Entry",
    "LengthWindow",
    "cheapest_part",
    "least_padded",
    "most_work",
    "number_of",
    "rows_of",
    "work_of",
]

T = TypeVar("T")


class Entry(Generic[T]):
    """A request in the queue, to which several orders refer, perhaps long after it has left."""

    __slots__ = ("cost", "number", "request", "rows", "work")

    def __init__(self, number: int, request: Request[T], work: float) -> None:
        self.number = number
        #: None once it has left.
        self.request: Request[T] | None = request
        self.rows, self.cost = request.rows, request.cost
        #: What all its rows cost if none were padded.
        self.work = work


number_of, rows_of, work_of = attrgetter("number"), attrgetter("rows"), attrgetter("work")


class LengthWindow(Generic[T]):
    """The requests that have waited longest, `size` batches' worth of them, by length."""

    def __init__(self, limits: CostLimits, size: int, waiting: Iterable[Entry[T]]) -> None:
        self.limits, self.size = limits, size
        #: By cost and, where that is equal, by arrival.
        self.entries: list[Entry[T]] = []
        #: The cost of each.
        self._costs: list[float] = []
        self._rows, self._cost = 0, 0.0
        #: The number of the last request that was let in.
        self._last = 0
        #: Those that came after it.
        self.behind = deque(waiting)

    def fill(self) -> None:
        """Let the requests that have waited longest in."""
        most_rows, most_cost = self.size * self.limits.rows, self.size * self.limits.cost
        entries, costs, behind = self.entries, self._costs, self.behind
        rows, cost = self._rows, self._cost
        while behind and rows < most_rows and cost < most_cost:
            entry = behind.popleft()
            at = bisect_right(costs, entry.cost)
            costs.insert(at, entry.cost)
            entries.insert(at, entry)
            rows += entry.rows
            cost += entry.work
            self._last = entry.number
        self._rows, self._cost = rows, cost

    def place_of(self, oldest: Entry[T]) -> int:
        """Return where the oldest entry is: of equal ones it is the first."""
        return bisect_left(self._costs, oldest.cost)

    def take(self, start: int, end: int) -> list[Entry[T]]:
        """Remove and return a slice."""
        entries = self.entries[start:end]
        del self.entries[start:end], self._costs[start:end]
        self._subtract(entries)
        return entries

    def remove(self, leaving: Sequence[Entry[T]]) -> None:
        """Remove entries, also of those behind; look only at the lengths between them."""
        numbers = set(map(number_of, leaving))
        inside = [entry for entry in leaving if entry.number <= self._last]
        if len(inside) < len(leaving):
            self.behind = deque(each for each in self.behind if each.number not in numbers)
        if not inside:
            return
        costs = [entry.cost for entry in inside]
        start, end = bisect_left(self._costs, min(costs)), bisect_right(self._costs, max(costs))
        kept = [each for each in self.entries[start:end] if each.number not in numbers]
        self.entries[start:end], self._costs[start:end] = kept, [each.cost for each in kept]
        self._subtract(inside)

    def _subtract(self, removed: Sequence[Entry[T]]) -> None:
        self._rows -= sum(map(rows_of, removed))
        self._cost -= sum(map(work_of, removed))
        if not self.entries:
            self._cost = 0.0  # without the error of float arithmetic

    def shorter(self, load: Load, call_cost: float) -> list[Entry[T]]:
        """Return entries that fit beside others and are no longer than these, the longest first."""
        found = []
        at = bisect_right(self._costs, load.longest)
        while at and not load.is_full:
            at -= 1
            entry = self.entries[at]
            if entry.cost * (call_cost + load.cost) < load.longest * load.work:
                break  # it is cheaper in another call
            if load.offer(entry):
                found.append(entry)
        return found

    def longer(self, load: Load, call_cost: float) -> list[Entry[T]]:
        """Return entries that fit beside others, though longer than these, the shortest first."""
        found = []
        at, of_call = bisect_right(self._costs, load.longest), self.limits.of_call
        for entry in self.entries[at:]:
            with_it = call_cost + of_call(entry.cost, load.rows + entry.rows)
            if (load.work + entry.work) * (call_cost + load.cost) < load.work * with_it:
                break  # the others are cheaper without it
            if not load.offer(entry):
                break
            found.append(entry)
        return found


def least_padded(window: Sequence[Entry[T]], at: int, limits: CostLimits) -> tuple[int, int]:
    """Return the bounds of the slice with entry `at` that pads least, of those that cannot grow."""
    start, end, of_call = at, at + 1, limits.of_call
    longest, rows = window[at].cost, window[at].rows
    count, total, most = rows, rows * longest, limits.most_rows(longest)
    while start:  # the first slice
        entry = window[start - 1]
        if count + entry.rows > most:
            break
        start -= 1
        count += entry.rows
        total += entry.work
    best, bounds = -1.0, (start, end)
    while True:
        padded = of_call(longest, count)
        if end == len(window):
            next_rows, next_most = 0, -1
        else:
            longest = window[end].cost
            next_rows, next_most = window[end].rows, limits.most_rows(longest)
        if count + next_rows > next_most and (not padded or total >= best * padded):
            best, bounds = (total / padded if padded else 1.0), (start, end)
        if end == len(window):
            return bounds
        end += 1
        count += next_rows
        total += next_rows * longest
        while count > next_most and start <= at:
            count -= window[start].rows
            total -= window[start].work
            start += 1
        if start > at:
            return bounds


def cheapest_part(
    window: Sequence[Entry[T]], at: int, limits: CostLimits, call_cost: float
) -> tuple[int, int]:
    """Return the bounds of the slice with entry `at`, cut as long as that is cheaper."""
    start, end, of_call = 0, len(window), limits.of_call
    while True:
        rows = sum(map(rows_of, window[start:end]))
        longest, before, cut = window[end - 1].cost, 0, end
        least = of_call(longest, rows)
        for index in range(start + 1, end):
            entry = window[index - 1]
            before += entry.rows
            apart = call_cost + of_call(entry.cost, before) + of_call(longest, rows - before)
            if apart < least:
                least, cut = apart, index
        if cut == end:
            return start, end
        start, end = (start, cut) if at < cut else (cut, end)


def most_work(
    window: Sequence[Entry[T]], at: int, limits: CostLimits, call_cost: float
) -> tuple[int, int]:
    """Return the bounds of the slice that costs most without padding, for the cost of its call."""
    # Where the longest row is longer, the shortest that is worth its padding is no shorter.  So
    # both bounds only rise.  The limits are without fixed sizes and lengths.
    most_rows, most_cost = limits.rows, limits.cost
    entry = window[at]
    longest = entry.cost
    start, end, count, total = at, at + 1, entry.rows, entry.work
    most, padded = limits.most_rows(longest), longest * count
    while start:  # the first slice: all shorter ones that are worth it
        entry = window[start - 1]
        if count + entry.rows > most or entry.cost * (call_cost + padded) < longest * total:
            break
        start -= 1
        count += entry.rows
        total += entry.work
        padded = longest * count
    spent = call_cost + padded
    best, bounds = total / spent if spent else inf, (start, end)
    while end < len(window):
        entry = window[end]
        longest = entry.cost
        end += 1
        count += entry.rows
        total += entry.work
        padded = longest * count
        while start < at:
            entry = window[start]
            is_too_much = count > most_rows or padded > most_cost
            if not is_too_much and entry.cost * (call_cost + padded) >= longest * total:
                break
            start += 1
            count -= entry.rows
            total -= entry.work
            padded = longest * count
        if count > most_rows or padded > most_cost:
            break
        spent = call_cost + padded
        if total >= best * spent:
            best, bounds = total / spent if spent else inf, (start, end)
    return bounds
