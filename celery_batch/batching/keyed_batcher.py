"""
Requests in, batches of one key out.

Rule 1: only requests with equal keys share a batch. Each key has a queue of its own
        (``batcher.py``), with its own ``max_wait`` and ``linger``.
Rule 2: a key is ready when its batch is full, or due: what it waits for did not come in time.
        While a slot is free, each ready key is served at once. Behind a running batch, due keys
        are served only if some key has a full batch, whose that place would else always be, or
        if many keys are ready: what the first of them could gain until the slot is free is then
        a small part of what it has gained while it waited for its turn.
Rule 3: among ready keys, the one with the most urgent request goes first; a more urgent one goes
        before them though it is not ready. Overtaken keys earn a guaranteed share, in whole
        batches: once they have earned one, they go first.
Rule 4: keys of one urgency share the slots fairly, by the work of their batches (start-time fair
        queueing). A virtual clock advances with the work that each ready key would have got. A
        key becomes ready at that time, or when its last batch ends on that clock if that is
        later; the earliest goes first, and of equals the one whose oldest request came first.
Rule 5: nothing is done for each key where one is added to or taken from: the orders are heaps,
        from which a key that has changed its place is dropped when it comes to the front.
Rule 6: a key without requests is forgotten, but for the last ``_REMEMBERED`` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.cost import CallCost
from celery_batch.batching.policy import BatchPolicy

__all__ = ["AnyBatcher", "KeyedBatcher"]

T = TypeVar("T")

#: Keys without requests of which it is known how much of the slots they had.
_REMEMBERED = 1024

#: So many ready keys are served behind a running batch, too.
_MANY_READY = 32

#: Entries of a heap that have changed their place, and are kept until it is worth the time.
_MOST_MOVED = 1024

_rows = attrgetter("rows")

#: A whole batch, less what adding up its parts may lose in float arithmetic.
_WHOLE = 1 - 1e-6


class _Key(Generic[T]):
    """The waiting requests of one key."""

    __slots__ = (
        "batcher",
        "finish",
        "is_full",
        "is_ready",
        "is_whole",
        "key",
        "oldest",
        "urgency",
    )

    def __init__(self, key: Hashable, batcher: Batcher[T], finish: float) -> None:
        self.key = key
        self.batcher = batcher
        #: When its last batch ends on the virtual clock.
        self.finish = finish
        #: By which it is in the orders.
        self.urgency, self.oldest = 0, 0.0
        self.is_ready = self.is_full = self.is_whole = False


#: By what a key is ordered, a number that no other entry has, and the key.
_Entry = tuple[float, float, int, _Key[T]]


class _Heap(Generic[T]):
    """Keys in an order."""

    def __init__(self) -> None:
        self._heap: list[_Entry[T]] = []
        #: The only valid entry of each key.
        self._entries: dict[_Key[T], _Entry[T]] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, key: _Key[T], first: float, second: float = 0.0) -> None:
        """Add a key that is not in it, ordered by two numbers."""
        self._pushed += 1
        entry = self._entries[key] = (first, second, self._pushed, key)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _MOST_MOVED:
            self._heap = [*self._entries.values()]
            heapify(self._heap)

    def discard(self, key: _Key[T]) -> None:
        """Remove a key that is in it."""
        del self._entries[key]

    @property
    def first(self) -> _Entry[T] | None:
        """The entry of the first key; None if there is none."""
        heap = self._heap
        while heap and self._entries.get(heap[0][3]) is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None


@dataclass(slots=True)
class _Total:
    """What waits of one urgency, or of several."""

    requests: int = 0
    rows: int = 0
    work: float = 0.0  # in the unit of `max_batch_work`


class _Level(Generic[T]):
    """The keys whose most urgent requests have the same urgency."""

    def __init__(self) -> None:
        #: By their time on the virtual clock.
        self.ready: _Heap[T] = _Heap()
        #: By the time at which they are due.
        self.waiting: _Heap[T] = _Heap()

    @property
    def first(self) -> _Key[T]:
        """The key that goes first: a ready one, or the one that will be first."""
        entry = self.ready.first or self.waiting.first
        assert entry is not None  # noqa: S101 (a level without keys is removed)
        return entry[3]


class KeyedBatcher(Generic[T]):
    """The queue in front of a model whose batches have one key; used as `Batcher` is."""

    def __init__(self, policy: BatchPolicy, call_cost: CallCost | None = None) -> None:
        self._policy = policy
        self._call_cost = call_cost or CallCost()
        #: The requests that run alone.
        self._suspects: Batcher[T] = Batcher(policy)
        self._keys: dict[Hashable, _Key[T]] = {}
        self._levels: dict[int, _Level[T]] = {}
        #: The keys by their oldest request.
        self._ages: _Heap[T] = _Heap()
        self._length = 0
        #: By the urgency of the requests.
        self._totals: dict[int, _Total] = {}
        #: Keys with a batch that need not wait for anything.
        self._whole_keys = 0
        self._clock = 0.0
        #: The end of the last batch of keys without requests, and whether it was of several.
        self._idle: OrderedDict[Hashable, tuple[float, bool]] = OrderedDict()
        self._had_several = True
        self._linger_from = 0.0
        #: The part of a batch that overtaken keys have earned.
        self._earned = 0.0

    def __len__(self) -> int:
        return self._length + len(self._suspects)

    @property
    def keys(self) -> int:
        """How many keys have requests that wait."""
        return len(self._keys)

    @property
    def policy(self) -> BatchPolicy:
        """When batches leave; it may change at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: BatchPolicy) -> None:
        self._policy = self._suspects.policy = policy
        for key in self._keys.values():
            key.batcher.policy = policy
        self._rebuild()

    @property
    def oldest(self) -> float | None:
        """When the oldest waiting request arrived; None if none waits."""
        first, suspect = self._ages.first, self._suspects.oldest
        if first is None or suspect is None:
            return suspect if first is None else first[0]
        return min(first[0], suspect)

    @property
    def urgency(self) -> int | None:
        """The urgency of the next batch; None if no request waits."""
        suspects = self._suspects.urgency
        return min(self._levels, default=None) if suspects is None else suspects

    @property
    def rows(self) -> int:
        """How many rows the waiting requests have."""
        return self._total_before(inf).rows + self._suspects.rows

    def rows_of(self, urgency: int) -> int:
        """Return how many rows the waiting requests of exactly this urgency have."""
        return self._totals[urgency].rows if urgency in self._totals else 0

    def before(self, urgency: int) -> tuple[int, int]:
        """Return how many requests would go before a new one of this urgency, and their rows."""
        total = self._total_before(urgency)
        return total.requests + len(self._suspects), total.rows + self._suspects.rows

    def work_before(self, urgency: int) -> float:
        """Return how much work goes before a new request, in the unit of `max_batch_work`."""
        return self._total_before(urgency).work + self._suspects.work_before(urgency)

    def other_keys(self, request: Request[T]) -> int:
        """Return how many other keys have requests that go before a new one."""
        levels = [level for each, level in self._levels.items() if each <= request.urgency]
        own = self._keys.get(request.key)
        is_counted = own is not None and own.urgency <= request.urgency
        return sum(len(level.ready) + len(level.waiting) for level in levels) - is_counted

    def _total_before(self, urgency: float) -> _Total:
        """Return what waits of these urgencies."""
        found = _Total()
        for each, total in self._totals.items():
            if each <= urgency:
                found.requests += total.requests
                found.rows += total.rows
                found.work += total.work
        return found

    @property
    def is_full(self) -> bool:
        """Whether a batch waits that cannot grow, or that gains little by waiting."""
        if self._suspects.is_full or self._whole_keys:
            return True
        return self._ready_keys >= _MANY_READY

    @property
    def _ready_keys(self) -> int:
        return sum([len(level.ready) for level in self._levels.values()])

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of the requests that run alone; None if they have none."""
        return self._suspects.next_deadline

    def add(self, request: Request[T]) -> None:
        """Add a request, whose ``arrived`` is on the clock of `next`."""
        if request.is_suspect:
            self._suspects.add(request)
            return
        rows, policy = request.rows, self._policy
        total = self._totals.get(request.urgency)
        if total is None:
            total = self._totals[request.urgency] = _Total()
        self._length += 1
        total.requests += 1
        total.rows += rows
        has_cost = policy.max_batch_cost is not None
        total.work += policy.work_of(rows, request.cost) if has_cost else rows
        key = self._keys.get(request.key)
        if key is None:
            key = self._keys[request.key] = self._new(request.key)
            key.batcher.add(request)
            self._place(key)
            return
        key.batcher.add(request)
        if request.urgency < key.urgency or request.arrived < key.oldest:
            self._take_out(key)
            self._place(key)
        elif key.is_full:
            if not key.is_whole and key.batcher.has_whole_batch:
                key.is_whole = True
                self._whole_keys += 1
        elif key.batcher.is_full:
            self._take_out(key)
            self._place(key)

    def _new(self, name: Hashable) -> _Key[T]:
        finish, had_several = self._idle.pop(name, (0.0, self._had_several))
        batcher: Batcher[T] = Batcher(self._policy, self._call_cost)
        batcher.had_several = had_several
        return _Key(name, batcher, finish)

    def _rebuild(self) -> None:
        """Put all keys into the orders again, which may all have changed their places."""
        keys, self._keys, self._levels = [*self._keys.values()], {}, {}
        self._ages, self._whole_keys = _Heap(), 0
        for key in keys:
            key.is_ready = False
            if len(key.batcher):
                self._keys[key.key] = key
                self._place(key)
            else:
                self._remember(key)

    def _place(self, key: _Key[T]) -> None:
        """Put a key into the orders."""
        batcher = key.batcher
        key.urgency, key.oldest = batcher.urgency or 0, batcher.oldest or 0.0
        self._ages.push(key, key.oldest)
        key.is_full = batcher.is_full
        key.is_whole = key.is_full and batcher.has_whole_batch
        self._whole_keys += key.is_whole
        level = self._levels.get(key.urgency)
        if level is None:
            level = self._levels[key.urgency] = _Level()
        if key.is_full:
            self._make_ready(level, key)
        else:
            key.is_ready = False
            level.waiting.push(key, batcher.due_at)

    def _make_ready(self, level: _Level[T], key: _Key[T]) -> None:
        if not key.is_ready:  # else it has been ready since its last batch
            key.is_ready = True
            key.finish = max(key.finish, self._clock)
        level.ready.push(key, key.finish, key.oldest)

    def _take_out(self, key: _Key[T]) -> None:
        """Take a key out of the orders, to which `_place` returns it."""
        self._ages.discard(key)
        self._whole_keys -= key.is_whole
        level = self._levels[key.urgency]
        (level.ready if key.is_ready else level.waiting).discard(key)
        if not (level.ready or level.waiting):
            del self._levels[key.urgency]

    def _put_back(self, key: _Key[T]) -> None:
        """Return a key to the orders, or forget it if it has no requests left."""
        if len(key.batcher):
            self._place(key)
        else:
            del self._keys[key.key]
            self._remember(key)

    def _count_out(self, requests: Sequence[Request[T]]) -> float:
        """Subtract requests from the totals; return their work."""
        all_work, policy = 0.0, self._policy
        urgencies = {each.urgency for each in requests}
        for urgency in urgencies:
            those = requests
            if len(urgencies) > 1:
                those = [each for each in requests if each.urgency == urgency]
            work: float
            work = rows = sum(map(_rows, those))
            if policy.max_batch_cost is not None:
                work = sum([policy.work_of(each.rows, each.cost) for each in those])
            total = self._totals[urgency]
            total.requests -= len(those)
            total.rows -= rows
            total.work -= work
            all_work += work
            if not total.requests:
                del self._totals[urgency]
        self._length -= len(requests)
        return all_work

    def restart_linger(self, now: float) -> None:
        """Let the linger time begin now, as in `Batcher`."""
        self._linger_from = max(self._linger_from, now)

    def batch_ended(self, now: float, rows: int, urgency: int, key: Hashable = None) -> None:
        """Note that a batch of several requests has ended, whose callers may soon call again."""
        found = self._keys.get(key)
        if found is not None:
            found.batcher.batch_ended(now, rows, urgency)
            self._take_out(found)
            self._place(found)

    def redelivered_ended(self, now: float, requests: int) -> None:
        """Note that so many redelivered requests have ended together, as `Batcher`."""
        self._suspects.redelivered_ended(now, requests)

    def expect_more(self, key: Hashable = None) -> None:
        """Linger after a batch of one of this key, too, as `Batcher`."""
        self._had_several = True
        found = self._keys.get(key)
        if found is not None:
            found.batcher.expect_more()
        elif key in self._idle:
            self._idle[key] = (self._idle[key][0], True)

    def next(
        self, now: float, *, full_only: bool = False, earns_share: bool = True
    ) -> Batch[T] | Wait:
        """Decide what a slot does now, as `Batcher.next`."""
        if len(self._suspects):
            return self._suspects.next(now)
        if not self._keys:
            return Wait(None)
        due = self._find_due(now)
        if full_only and not self.is_full:
            return Wait(None)
        if not self._ready_keys:
            return Wait(due - now)
        return self._take(now, Reason.IDLE, earns_share=earns_share)

    def _find_due(self, now: float) -> float:
        """Make the keys ready that are due; return when the next one is, if any."""
        return min([self._find_due_of(level, now) for level in self._levels.values()])

    def _find_due_of(self, level: _Level[T], now: float) -> float:
        while (entry := level.waiting.first) is not None:
            noted, _, _, key = entry
            key.batcher.restart_linger(self._linger_from)
            due = key.batcher.due_at
            if now < due <= noted:
                return due
            level.waiting.discard(key)
            if due <= now:
                self._make_ready(level, key)
            else:  # later than noted, as requests have arrived meanwhile
                level.waiting.push(key, due)
        return inf

    def take(self, now: float, unless_due: Reason, *, earns_share: bool = True) -> Batch[T]:
        """Remove and return the next batch, as `Batcher.take`; no request that runs alone waits."""
        self._find_due(now)
        return self._take(now, unless_due, earns_share=earns_share)

    def _take(self, now: float, unless_due: Reason, *, earns_share: bool) -> Batch[T]:
        first, policy = min(self._levels), self._policy
        is_only = len(self._levels) == 1
        earned = self._earned if is_only else 0.0
        key = self._choose(first, policy.low_priority_share if earns_share else 0.0)
        ready = self._ready_keys
        goes_before = ready > 0 and key.urgency == first and not key.is_ready
        self._take_out(key)
        batch = key.batcher.take(
            now, Reason.URGENT if goes_before else unless_due, earns_share=earns_share
        )
        self._had_several = key.batcher.had_several
        work = self._count_out(batch.requests)
        batches = max(work / policy.max_batch_work, 1.0)
        key.finish = (key.finish if key.is_ready else max(key.finish, self._clock)) + batches
        self._clock += batches / max(ready, 1)
        self._put_back(key)
        if is_only or all(each == first for each in self._levels):
            self._earned = 0.0  # no key is overtaken
        if first < batch.urgency or earned:
            part = batch.earned_part + earned
            return replace(batch, urgency=min(first, batch.urgency), earned_part=part)
        return batch

    def _choose(self, first: int, share: float) -> _Key[T]:
        """Return the key that goes first: of the most urgent ones, unless others have earned it."""
        if len(self._levels) == 1:
            return self._levels[first].first
        overtaken = [each for each in self._levels if each != first]
        self._earned += share
        if self._earned <= _WHOLE:
            return self._levels[first].first
        self._earned -= 1.0
        keys = [self._levels[each].first for each in overtaken]
        return min(keys, key=lambda key: key.batcher.oldest or 0.0)

    def _remember(self, key: _Key[T]) -> None:
        """Note of a key without requests what is of use if it comes again soon."""
        self._idle[key.key] = (key.finish, key.batcher.had_several)
        if len(self._idle) > _REMEMBERED:
            self._idle.popitem(last=False)

    def clear(self) -> list[Request[T]]:
        """Remove and return all waiting requests, the most urgent first, then by arrival."""
        left = [request for key in self._keys.values() for request in key.batcher.clear()]
        left.sort(key=lambda request: (request.urgency, request.arrived))
        self._totals.clear()
        self._length = 0
        self._rebuild()
        return self._suspects.clear() + left

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some waiting requests; the others keep their places."""
        removed = self._suspects.remove(is_unwanted)
        for key in [*self._keys.values()]:
            removed += self._remove_from(key, is_unwanted)
        return removed

    def discard(self, request: Request[T]) -> None:
        """Remove a waiting request that does not run alone."""
        self._remove_from(self._keys[request.key], lambda each: each is request)

    def _remove_from(
        self, key: _Key[T], is_unwanted: Callable[[Request[T]], bool]
    ) -> list[Request[T]]:
        removed = key.batcher.remove(is_unwanted)
        self._count_out(removed)
        if removed:
            self._take_out(key)
            self._put_back(key)
        return removed

    def expire(self, now: float) -> list[Request[T]]:
        """Remove and return the requests that run alone whose deadline has passed."""
        return self._suspects.expire(now)


#: The queue in front of a model, whether batches are formed by key or not.
AnyBatcher = Batcher[T] | KeyedBatcher[T]
