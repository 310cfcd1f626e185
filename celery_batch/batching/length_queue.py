"""
Requests of one urgency, from which batches of similar lengths are chosen.

Rule 1: first come, first served would pad each batch to a longest row that came by chance. So
        a batch is chosen from the requests that have waited longest, ``sort_window`` batches'
        worth of them, ordered by length: the neighbours of the oldest request, such that least
        is padded. The oldest is always in it.
Rule 2: once it is known what a call costs beside its rows, a batch has the neighbours with which
        most is done in a unit of time: rows that pad too much wait for the next call. Until then
        a batch is as large as the limits allow. Where all that wait fit into one, they are that
        batch, unless two calls cost less.
Rule 3: no request leaves more than ``sort_window`` batches after first come, first served would
        have taken it. With each batch, the requests which that order would take next are noted;
        what is left of them ``sort_window`` batches later is the next batch, into which they
        fit, and is filled with shorter ones. Where the limits have become smaller meanwhile,
        what does not fit any more is in the batches after it.
Rule 4: without a window, or where nothing is padded, first come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from math import inf
from typing import Generic, TypeVar

from celery_batch.batching.batch import Request
from celery_batch.batching.cost import CallCost, CostLimits, Load
from celery_batch.batching.length_window import (
    Entry,
    LengthWindow,
    cheapest_part,
    least_padded,
    most_work,
    number_of,
)

__all__ = ["LengthQueue"]

T = TypeVar("T")

#: Entries that have left, and are kept until it is worth the time to drop them.
_MOST_LEFT = 1024

#: A call costs at least this part of the largest batch, so that equal rows share one; more of a
#: backlog, where small batches would make those due that first come, first served would take.
_LEAST, _LEAST_OF_BACKLOG = 0.005, 0.05

#: Requests do not fit into one batch whose cost is this much too high, whatever its float error.
_SURELY = 1.01


class _Schedule(Generic[T]):
    """What first come, first served would take, so that no request leaves much later (rule 3)."""

    def __init__(self, waiting: Iterable[Entry[T]]) -> None:
        #: Those that it would take later.
        self.later = deque(waiting)
        #: The number of the last request that it would have taken by each of the latest
        #: batches, of as many as it may be late, and one more.
        self._taken = deque([0])

    def take(self, limits: CostLimits, delay: int, arrivals: deque[Entry[T]]) -> list[Entry[T]]:
        """Count a batch; return the entries that have to leave with it, as far as they fit."""
        taken = self._taken
        taken.append(self._next(limits))
        while len(taken) > delay + 1:
            taken.popleft()
        last = taken[0]  # which is to leave `delay` batches later at the latest, and so now
        if last < arrivals[0].number:  # as nearly always
            return []
        old = takewhile(lambda entry: entry.number <= last, arrivals)
        return Load(limits).take_from(entry for entry in old if entry.request is not None)

    def _next(self, limits: CostLimits) -> int:
        """Return the number of the last request that first come, first served would take now."""
        later = self.later
        while later and later[0].request is None:  # that order cannot be behind the queue
            later.popleft()
        taken = Load(limits).take_from(later)
        for _ in taken:
            later.popleft()
        return taken[-1].number if taken else self._taken[-1]


class LengthQueue(Generic[T]):
    """Waiting requests of one urgency; without a window, first come, first served."""

    def __init__(
        self, limits: CostLimits, sort_window: int, call_cost: CallCost | None = None
    ) -> None:
        self._limits, self._is_padded = limits, limits.is_padded
        self._call_cost = call_cost or CallCost()
        self._arrivals: deque[Entry[T]] = deque()
        self._length = 0
        self._added = 0
        #: One batch of those that wait, as far as they fit; of a backlog, only whether it is full.
        self.batch = Load(limits)
        #: Whether all requests that wait are in it.
        self.is_one_batch = True
        self.rows = 0
        #: What all rows cost if none were padded, as far as that is known.
        self.cost = 0.0
        self._sort(sort_window)

    def _sort(self, sort_window: int) -> None:
        """Choose batches by length from now on, among so many batches' worth, unless that is 0."""
        waiting = [entry for entry in self._arrivals if entry.request is not None]
        is_sorted = sort_window > 0 and self._is_padded
        #: Those among which a batch is chosen.
        self._window = LengthWindow(self._limits, sort_window, waiting) if is_sorted else None
        self._schedule = _Schedule(waiting if is_sorted else ())

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request[T]]:
        waiting = (entry.request for entry in self._arrivals)
        return (request for request in waiting if request is not None)

    @property
    def oldest(self) -> Request[T]:
        """The request that has waited longest."""
        request = self._arrivals[0].request
        assert request is not None  # noqa: S101 (what has left is not kept in front)
        return request

    @property
    def may_divide(self) -> bool:
        """Whether requests that fit into one batch may leave in several."""
        return self._window is not None and self._call_cost.value < inf

    def limit(self, limits: CostLimits, sort_window: int) -> None:
        """Keep to other limits from the next batch on, which pad as these do."""
        self._limits = limits
        if self._window is None or not sort_window:
            self._sort(sort_window)
        else:
            self._window.limits, self._window.size = limits, sort_window
        self._compare_with_batch()

    def append(self, request: Request[T]) -> None:
        """Add a request behind all others."""
        rows, cost = request.rows, request.cost
        work = cost * rows if self._is_padded else cost
        self._added += 1
        entry = Entry(self._added, request, work)
        self._arrivals.append(entry)
        self._length += 1
        self.rows += rows
        self.cost += work
        if self._window is not None:
            self._window.behind.append(entry)
            self._schedule.later.append(entry)
        self.is_one_batch = not self.batch.is_full and bool(self.batch.take_from((request,)))

    def take(self) -> list[Request[T]]:
        """Remove and return the requests of the next batch, the oldest first."""
        window = self._window
        if window is None:
            return self._forget(self._in_order(Load(self._limits)))
        due = self._schedule.take(self._limits, window.size, self._arrivals)
        if self.is_one_batch and not self.may_divide:
            return self._remove([entry for entry in self._arrivals if entry.request is not None])
        window.fill()
        if not due:
            return self._forget(window.take(*self._bounds(window)))
        load = Load(self._limits)
        load.take_from(due)
        window.remove(due)
        beside = window.shorter(load, self._known_cost(_LEAST_OF_BACKLOG))
        window.remove(beside)
        return self._forget(due + beside)

    def take_beside(self, load: Load) -> list[Request[T]]:
        """Remove and return requests that fit beside others, and do not pad them too much."""
        window = self._window
        if window is None:
            return self._forget(self._in_order(load))
        window.fill()
        call_cost = self._known_cost(_LEAST_OF_BACKLOG)
        found = window.shorter(load, call_cost)
        if 2 * load.cost < self._limits.cost:
            found += window.longer(load, call_cost)
        return self._remove(found)

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some requests, the oldest first; the others keep their places."""
        return self._remove(
            [
                entry
                for entry in self._arrivals
                if entry.request is not None and is_unwanted(entry.request)
            ]
        )

    def _in_order(self, load: Load) -> list[Entry[T]]:
        """Return the entries that have waited longest, as long as they fit beside a load."""
        return load.take_from(entry for entry in self._arrivals if entry.request is not None)

    def _bounds(self, window: LengthWindow[T]) -> tuple[int, int]:
        """Return the bounds, in the window, of the batch with the oldest entry."""
        limits, entries, at = self._limits, window.entries, window.place_of(self._arrivals[0])
        if self.is_one_batch:
            return cheapest_part(entries, at, limits, self._known_cost(_LEAST))
        if not self.may_divide or limits.sizes or limits.lengths:
            return least_padded(entries, at, limits)
        return most_work(entries, at, limits, self._known_cost(_LEAST_OF_BACKLOG))

    def _known_cost(self, least: float) -> float:
        return max(self._call_cost.value, least * self._limits.cost)

    def _remove(self, entries: list[Entry[T]]) -> list[Request[T]]:
        """Remove entries; return their requests, the oldest first."""
        if self._window is not None:
            self._window.remove(entries)
        return self._forget(entries)

    def _forget(self, entries: list[Entry[T]]) -> list[Request[T]]:
        """Note that entries leave, which the window has no more; return as `_remove` does."""
        entries.sort(key=number_of)
        removed, rows, work = [entry.request for entry in entries if entry.request], 0, 0.0
        for entry in entries:
            entry.request = None
            rows += entry.rows
            work += entry.work
        self.rows -= rows
        self.cost -= work
        self._length -= len(entries)
        arrivals = self._arrivals
        while arrivals and arrivals[0].request is None:
            arrivals.popleft()
        self._arrivals = _compact(arrivals, self._length)
        self._schedule.later = _compact(self._schedule.later, self._length)
        if not self._length:
            self.cost = 0.0  # without the error of float arithmetic
        self._compare_with_batch()
        return removed

    def _compare_with_batch(self) -> None:
        """Find out whether what waits is a full batch, and fits into one."""
        limits = self._limits
        if self._length > 1 and (self.rows > limits.rows or self.cost > _SURELY * limits.cost):
            self.batch.is_full, self.is_one_batch = True, False  # as nearly always in a backlog
            return
        self.batch = batch = Load(limits)
        self.is_one_batch = len(batch.take_from(self)) == self._length
        if self.is_one_batch and not self._is_padded:
            self.cost = batch.work  # without the error of float arithmetic


def _compact(entries: deque[Entry[T]], waiting: int) -> deque[Entry[T]]:
    """Return entries, without those that have left if these are most of them."""
    if len(entries) <= 2 * waiting + _MOST_LEFT:
        return entries
    return deque(entry for entry in entries if entry.request is not None)
