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

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

from celery_batch.batching.batch import Request
from celery_batch.batching.cost import CallCost, CostLimits, Load

__all__ = ["LengthQueue"]

T = TypeVar("T")

#: Entries that have left, and are kept until it is worth the time to drop them.
_MOST_LEFT = 1024

_number, _rows, _work = attrgetter("number"), attrgetter("rows"), attrgetter("work")

#: A call costs at least this part of the largest batch, so that equal rows share one; more of a
#: backlog, where small batches would make those due that first come, first served would take.
_LEAST, _LEAST_OF_BACKLOG = 0.005, 0.05

#: Requests do not fit into one batch whose cost is this much too high, whatever its float error.
_SURELY = 1.01


class _Entry(Generic[T]):
    """A request in the queue, to which several orders refer, perhaps long after it has left."""

    __slots__ = ("cost", "has_left", "number", "request", "rows", "work")

    def __init__(self, number: int, request: Request[T], work: float) -> None:
        self.number = number
        self.request: Request[T] | None = request
        self.rows, self.cost = request.rows, request.cost
        #: What all its rows cost if none were padded.
        self.work = work
        self.has_left = False


class LengthQueue(Generic[T]):
    """Waiting requests of one urgency; without a window, first come, first served."""

    def __init__(
        self, limits: CostLimits, sort_window: int, call_cost: CallCost | None = None
    ) -> None:
        self._limits, self._is_padded = limits, limits.is_padded
        self._call_cost = call_cost or CallCost()
        self._sort_window = sort_window if limits.is_padded else 0
        self._arrivals: deque[_Entry[T]] = deque()
        self._length = 0
        self._added = 0
        #: Whether more requests wait than fit into one batch, or it cannot grow.
        self.is_full = False
        #: Whether all requests that wait fit into one batch.
        self.is_one_batch = True
        #: The cost of the longest row that waits; not kept while a batch is full.
        self._longest = 0.0
        #: Those among which a batch is chosen, by cost and, where that is equal, by arrival.
        self._window: list[_Entry[T]] = []
        #: The cost of each.
        self._costs: list[float] = []
        self._window_rows, self._window_cost = 0, 0.0
        #: The number of the last request that was let into it.
        self._last_in_window = 0
        self._behind_window: deque[_Entry[T]] = deque()
        #: Those that first come, first served would take later.
        self._unscheduled: deque[_Entry[T]] = deque()
        #: The number of the last request that first come, first served would have taken.
        self._last_scheduled = 0
        #: Numbers of batches, and of the last request that has to leave with each at the latest.
        self._due: deque[tuple[int, int]] = deque()
        self._batches = 0
        self.rows = 0
        #: What all rows cost if none were padded, as far as that is known.
        self.cost = 0.0

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
        return self._sort_window > 0 and self._call_cost.value < inf

    def limit(self, limits: CostLimits, sort_window: int) -> None:
        """Keep to other limits from the next batch on, which pad as these do."""
        had_window = self._sort_window > 0
        self._limits = limits
        self._sort_window = sort_window if limits.is_padded else 0
        if bool(self._sort_window) != had_window:
            self._restart_window()
        elif self._due:
            latest = self._batches + self._sort_window
            self._due = deque((min(batch, latest), number) for batch, number in self._due)
        self._compare_with_batch()

    def _restart_window(self) -> None:
        """Forget what is due, and let all that wait into the window again, if there is one."""
        self._window, self._costs, self._window_rows, self._window_cost = [], [], 0, 0.0
        self._due.clear()
        self._last_in_window = 0
        waiting = [entry for entry in self._arrivals if not entry.has_left]
        self._behind_window = deque(waiting if self._sort_window else ())
        self._unscheduled = self._behind_window.copy()

    def append(self, request: Request[T]) -> None:
        """Add a request behind all others."""
        rows, cost = request.rows, request.cost
        work = cost * rows if self._is_padded else cost
        self._added += 1
        entry = _Entry(self._added, request, work)
        self._arrivals.append(entry)
        self._length += 1
        self.rows += rows
        self.cost += work
        if self._sort_window:
            self._unscheduled.append(entry)
            self._behind_window.append(entry)
        if self.is_full:
            self.is_one_batch = False
            return
        self._longest = max(self._longest, cost)
        self._look_for_room()

    def take(self) -> list[Request[T]]:
        """Remove and return the requests of the next batch, the oldest first."""
        if not self._sort_window:
            return self._remove(self._in_order(Load(self._limits)))
        self._batches += 1
        self._due.append((self._batches + self._sort_window, self._schedule()))
        due = self._take_due()
        if self.is_one_batch and not self.may_divide:
            return self._remove([entry for entry in self._arrivals if not entry.has_left])
        self._fill_window()
        return self._remove(self._beside(due)) if due else self._remove_slice(*self._bounds())

    def take_beside(self, load: Load) -> list[Request[T]]:
        """Remove and return requests that fit beside others, and do not pad them too much."""
        if not self._sort_window:
            return self._remove(self._in_order(load))
        self._fill_window()
        found = self._shorter(load)
        if 2 * load.cost < self._limits.cost:
            found += self._longer(load)
        return self._remove(found)

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some requests, the oldest first; the others keep their places."""
        waiting = (entry for entry in self._arrivals if not entry.has_left)
        removed = [entry for entry in waiting if entry.request and is_unwanted(entry.request)]
        unwanted = {entry.number for entry in removed}
        behind = (entry for entry in self._behind_window if entry.number not in unwanted)
        self._behind_window = deque(behind)
        return self._remove(removed)

    def _in_order(self, load: Load) -> list[_Entry[T]]:
        """Return the entries that have waited longest, as long as they fit beside a load."""
        return load.take_from(entry for entry in self._arrivals if not entry.has_left)

    def _schedule(self) -> int:
        """Return the number of the last request that first come, first served would take now."""
        waiting = self._unscheduled
        while waiting and waiting[0].has_left:  # that order cannot be behind the queue
            waiting.popleft()
        scheduled = Load(self._limits).take_from(waiting)
        for _ in scheduled:
            waiting.popleft()
        if scheduled:
            self._last_scheduled = scheduled[-1].number
        return self._last_scheduled

    def _take_due(self) -> list[_Entry[T]]:
        """Return the entries that have to leave with this batch, as far as they fit into it."""
        last = max([number for batch, number in self._due if batch <= self._batches], default=0)
        if last < self._arrivals[0].number:  # as nearly always
            self._forget_due()
            return []
        waiting = takewhile(lambda entry: entry.number <= last, self._arrivals)
        left = [entry for entry in waiting if not entry.has_left]
        due = Load(self._limits).take_from(left)
        if len(due) == len(left):  # else the others are due with the next batch
            self._forget_due()
        return due

    def _forget_due(self) -> None:
        """Forget what had to leave by now: all of it leaves, or has left."""
        while self._due[0][0] <= self._batches:
            self._due.popleft()

    def _beside(self, due: list[_Entry[T]]) -> list[_Entry[T]]:
        """Return entries that have to leave, and shorter ones that fit beside them."""
        load = Load(self._limits)
        load.take_from(due)
        for entry in due:
            entry.has_left = True  # so that it is not chosen once more
        return due + self._shorter(load)

    def _shorter(self, load: Load) -> list[_Entry[T]]:
        """Return entries that fit beside others and are no longer than these, the longest first."""
        found, call_cost = [], self._known_cost(_LEAST_OF_BACKLOG)
        at = bisect_right(self._costs, load.longest)
        while at and not load.is_full:
            at -= 1
            entry = self._window[at]
            if entry.has_left:
                continue
            if entry.cost * (call_cost + load.cost) < load.longest * load.work:
                break  # it is cheaper in another call
            if load.offer(entry):
                found.append(entry)
        return found

    def _longer(self, load: Load) -> list[_Entry[T]]:
        """Return entries that fit beside others, though longer than these, the shortest first."""
        found, call_cost = [], self._known_cost(_LEAST_OF_BACKLOG)
        at = bisect_right(self._costs, load.longest)
        of_call = self._limits.of_call
        while at < len(self._window):
            entry = self._window[at]
            with_it = call_cost + of_call(entry.cost, load.rows + entry.rows)
            if (load.work + entry.work) * (call_cost + load.cost) < load.work * with_it:
                break  # the others are cheaper without it
            if not load.offer(entry):
                break
            found.append(entry)
            at += 1
        return found

    def _bounds(self) -> tuple[int, int]:
        """Return the bounds, in the window, of the batch with the oldest entry."""
        window, limits = self._window, self._limits
        at = bisect_left(self._costs, self._arrivals[0].cost)  # of equal ones the oldest is first
        if self.is_one_batch:
            return _cheapest_part(window, at, limits, self._known_cost(_LEAST))
        if not self.may_divide or limits.sizes or limits.lengths:
            return _least_padded(window, at, limits)
        return _most_work(window, at, limits, self._known_cost(_LEAST_OF_BACKLOG))

    def _known_cost(self, least: float) -> float:
        return max(self._call_cost.value, least * self._limits.cost)

    def _remove(self, entries: list[_Entry[T]]) -> list[Request[T]]:
        """Remove entries; return their requests, the oldest first."""
        if self._sort_window:
            self._leave_window([each for each in entries if each.number <= self._last_in_window])
        return self._forget(entries, sum(map(_rows, entries)), sum(map(_work, entries)))

    def _remove_slice(self, start: int, end: int) -> list[Request[T]]:
        """Remove a slice of the window; return its requests, the oldest first."""
        entries = self._window[start:end]
        del self._window[start:end], self._costs[start:end]
        rows, work = sum(map(_rows, entries)), sum(map(_work, entries))
        self._window_rows -= rows
        self._window_cost -= work
        return self._forget(entries, rows, work)

    def _forget(self, entries: list[_Entry[T]], rows: int, work: float) -> list[Request[T]]:
        """Note that entries have left the queue; return their requests, the oldest first."""
        entries.sort(key=_number)
        removed = [entry.request for entry in entries if entry.request is not None]
        for entry in entries:
            entry.request, entry.has_left = None, True
        self.rows -= rows
        self.cost -= work
        self._length -= len(entries)
        arrivals = self._arrivals
        while arrivals and arrivals[0].has_left:
            arrivals.popleft()
        self._arrivals = _compact(arrivals, self._length)
        self._unscheduled = _compact(self._unscheduled, self._length)
        if not self._length:
            self.cost = self._window_cost = 0.0  # without the error of float arithmetic
            self._behind_window.clear()
        self._compare_with_batch()
        return removed

    def _compare_with_batch(self) -> None:
        """Find out whether what waits is a full batch, and fits into one."""
        limits = self._limits
        if self._length > 1 and (self.rows > limits.rows or self.cost > _SURELY * limits.cost):
            self.is_full, self.is_one_batch = True, False
            return
        costs = [request.cost for request in self]
        self._longest = max(costs, default=0.0)
        if not self._is_padded:
            self.cost = sum(costs)  # without the error of float arithmetic
        self._look_for_room()

    def _look_for_room(self) -> None:
        """Find out whether all that wait fit into one batch, and whether it can grow."""
        limits, rows, is_padded = self._limits, self.rows, self._is_padded
        cost = limits.of_call(self._longest, rows + 1) if is_padded else self.cost
        can_grow = cost <= limits.cost if is_padded else cost < limits.cost
        self.is_full = rows > 0 and (rows >= limits.rows or not can_grow)
        self.is_one_batch = not self.is_full or self._length == 1 or self._fits()

    def _fits(self) -> bool:
        limits, rows = self._limits, self.rows
        cost = limits.of_call(self._longest, rows) if self._is_padded else self.cost
        return rows <= limits.rows and cost <= limits.cost

    def _leave_window(self, entries: list[_Entry[T]]) -> None:
        """Drop entries that leave from the window; look only at the lengths between them."""
        if not entries:
            return
        costs = [entry.cost for entry in entries]
        start, end = bisect_left(self._costs, min(costs)), bisect_right(self._costs, max(costs))
        leaving = set(map(_number, entries))
        kept = [each for each in self._window[start:end] if each.number not in leaving]
        self._window[start:end], self._costs[start:end] = kept, [each.cost for each in kept]
        self._window_rows -= sum(map(_rows, entries))
        self._window_cost -= sum(map(_work, entries))

    def _fill_window(self) -> None:
        """Let the requests that have waited longest into the window, when it is needed."""
        most_rows = self._sort_window * self._limits.rows
        most_cost = self._sort_window * self._limits.cost
        window, costs, behind = self._window, self._costs, self._behind_window
        rows, cost = self._window_rows, self._window_cost
        while behind and rows < most_rows and cost < most_cost:
            entry = behind.popleft()
            at = bisect_right(costs, entry.cost)
            costs.insert(at, entry.cost)
            window.insert(at, entry)
            rows += entry.rows
            cost += entry.work
            self._last_in_window = entry.number
        self._window_rows, self._window_cost = rows, cost


def _compact(entries: deque[_Entry[T]], waiting: int) -> deque[_Entry[T]]:
    """Return entries, without those that have left if these are most of them."""
    if len(entries) <= 2 * waiting + _MOST_LEFT:
        return entries
    return deque(entry for entry in entries if not entry.has_left)


def _least_padded(window: Sequence[_Entry[T]], at: int, limits: CostLimits) -> tuple[int, int]:
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


def _cheapest_part(
    window: Sequence[_Entry[T]], at: int, limits: CostLimits, call_cost: float
) -> tuple[int, int]:
    """Return the bounds of the slice with entry `at`, cut as long as that is cheaper."""
    start, end, of_call = 0, len(window), limits.of_call
    while True:
        rows = sum(map(_rows, window[start:end]))
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


def _most_work(
    window: Sequence[_Entry[T]], at: int, limits: CostLimits, call_cost: float
) -> tuple[int, int]:
    """
    Return the bounds of the slice whose rows cost most without padding, for the cost of its call.

    Where the longest row is longer, the shortest that is worth its padding is no shorter.  So
    both bounds only rise, and each entry is looked at twice.  The window is in ascending order of
    the cost of the longest rows; the limits are without fixed sizes and lengths.
    """
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
