"""
The results that this process waits for, and their callbacks.

Every `BatchResult` holds its `PendingResult`, and the registry refers to them weakly: a
result that is dropped leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto
from itertools import islice, takewhile
from typing import Any
from weakref import WeakValueDictionary

from celery.utils.functional import noop

from celery_batch.compat.kombu import renew_property_locks
from celery_batch.compat.vine import BarrierCounter
from celery_batch.processes.per_process import PerProcess
from celery_batch.protocol import STARTED_ID, BatchInfo, read_facts

__all__ = [
    "NOT_STORED",
    "POLL_FOLLOWED",
    "POLL_NOTIFIED",
    "POLL_UNNOTIFIED",
    "TOO_LARGE",
    "Callback",
    "PendingResult",
    "PendingResults",
    "PollSchedule",
    "SentBy",
    "is_in_callback",
]

logger = logging.getLogger(__name__)

#: Seconds between two polls for a result that a worker notifies us of, in case that is missed;
#: for one that no worker notifies us of; and for a task whose states are followed.
POLL_NOTIFIED, POLL_UNNOTIFIED, POLL_FOLLOWED = 0.9, 0.2, 0.5

#: Seconds after which a result may well be stored although no notification has come.
STALE = 1.0

#: The `value` of a task that has ended, if it is too large for a notification.
TOO_LARGE = b""

#: What is stored of a task where nothing is: it was deleted, has expired, or never was.
NOT_STORED = b""

#: Called once, without arguments, by the thread that receives the result.
Callback = Callable[[], object]

_local = threading.local()


def _call_each(callbacks: Iterable[Callback]) -> None:
    """Call functions one after the other; what one raises is logged, and the others are called."""
    before = is_in_callback()
    _local.is_in_callback = True
    try:
        for callback in callbacks:
            try:
                callback()
            except Exception:
                logger.exception("A callback of a result has failed")
    finally:
        _local.is_in_callback = before


def is_in_callback() -> bool:
    """Return whether this thread runs callbacks of results, so that others wait for it."""
    return getattr(_local, "is_in_callback", False)


class SentBy(Enum):
    """Which process has sent a task: workers notify only that one when it ends."""

    THIS = auto()
    #: The one that this process was forked from: here its result is polled for.
    PARENT = auto()


_THIS = SentBy.THIS  # looking it up in the class takes ten times as long


class PendingResult:
    """What this process knows of one task's result."""

    __slots__ = (
        "__weakref__",
        "callbacks",
        "checked_at",
        "facts",
        "latest",
        "passive_callbacks",
        "registry",
        "sent_by",
        "state_callbacks",
        "task_id",
        "value",
    )

    def __init__(self, registry: PendingResults, task_id: str) -> None:
        self.registry = registry
        self.task_id = task_id
        #: None for a task of others, whose result Celery receives.
        self.sent_by: SentBy | None = None
        #: When the task was sent or its result was last polled.
        self.checked_at = 0.0
        #: The stored value, still encoded, or `TOO_LARGE`; None until the task has ended.
        self.value: bytes | None = None
        #: What was stored before the end, still encoded, or `NOT_STORED`; None if not known.
        self.latest: bytes | None = None
        #: The facts of its batch, still encoded, and the task's place in the batch.
        self.facts: tuple[bytes, int] | None = None
        #: Called with the end; the result is polled while there are any.
        self.callbacks: list[Callback] | None = None
        #: Called with the end, but not polled for.
        self.passive_callbacks: list[Callback] | None = None
        #: Called with the end or the next state; the state is polled while there are any.
        self.state_callbacks: list[Callback] | None = None

    @property
    def batch_info(self) -> BatchInfo | None:
        """How the result was made, if a notification said so."""
        return None if self.facts is None else read_facts(*self.facts)

    @property
    def poll_interval(self) -> float:
        """Seconds between two polls while it is awaited."""
        if self.callbacks and self.sent_by is not _THIS:
            return POLL_UNNOTIFIED
        return POLL_FOLLOWED if self.state_callbacks else POLL_NOTIFIED


class PollSchedule:
    """The results that are polled: for each interval a queue, in the order of their times."""

    def __init__(self) -> None:
        #: Those first that are polled at once, and then at the interval of their kind.
        intervals = (0.0, POLL_UNNOTIFIED, POLL_NOTIFIED, POLL_FOLLOWED)
        self._queues: dict[float, dict[PendingResult, float]] = {each: {} for each in intervals}

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def add(self, pending: PendingResult, due: float) -> None:
        """Poll a result from a time on, 0 for at once, unless it is in that queue already."""
        self._queues[pending.poll_interval if due else 0.0].setdefault(pending, due)

    def discard(self, pending: PendingResult) -> None:
        """Poll a result no more."""
        for queue in self._queues.values():
            queue.pop(pending, None)

    def take(self, now: float, limit: int) -> list[PendingResult]:
        """Return the results that are due, up to a limit; poll them again after their interval."""
        taken: dict[PendingResult, None] = {}
        for queue in self._queues.values():
            first = islice(queue.items(), limit - len(taken))
            due = [pending for pending, _ in takewhile(lambda item: item[1] <= now, first)]
            for pending in due:
                del queue[pending]
                taken[pending] = None
        for pending in taken:
            queue = self._queues[pending.poll_interval]
            queue.pop(pending, None)  # else it would keep its place
            queue[pending] = now + pending.poll_interval
        return list(taken)

    def next_due(self) -> float:
        """Return when the next result is due; infinity if there is none."""
        return min(next(iter(queue.values()), math.inf) for queue in self._queues.values())

    def make_all_due(self) -> None:
        """Have all of them polled at once."""
        for interval, queue in self._queues.items():
            self._queues[interval] = dict.fromkeys(queue, 0.0)


class PendingResults(PerProcess):
    """All pending results of one app in this process; safe for threads."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._known: WeakValueDictionary[str, PendingResult] = WeakValueDictionary()
        #: Reentrant, since a signal handler may use this while its own thread does.
        self._lock = threading.RLock()
        #: Callbacks that are removed as soon as a thread has the lock.
        self._removed: deque[tuple[PendingResult, Callback]] = deque()
        self._schedule = PollSchedule()
        #: When notifications may last have been missed.
        self._interrupted_at = 0.0
        #: Celery's barriers, whose members are some of these results.
        self.barriers = BarrierCounter(_call_each)
        #: Called when something is awaited, with whether to poll at once.  It is the listener's;
        #: where the last one was closed, it starts another.
        self.on_awaited: Callable[[bool], object] = noop

    def __len__(self) -> int:
        """Return how many results are known."""
        return len(self._known)

    @property
    def is_of_parent(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self.pid != os.getpid()

    def get(self, task_id: str) -> PendingResult:
        """Return a task's pending result, one for all `BatchResult` objects of the task."""
        new = PendingResult(self, task_id)  # outside the lock: it may start the garbage collector
        with self._lock:
            return self._known.setdefault(task_id, new)

    def expect_new(self, task_id: str) -> PendingResult:
        """Return the pending result of a message that is about to be sent, with a new id."""
        pending = PendingResult(self, task_id)
        pending.sent_by = _THIS
        pending.checked_at = time.monotonic()
        with self._lock:
            self._known[task_id] = pending
        return pending

    def expect(self, pending: PendingResult) -> PendingResult:
        """Return the pending result of a message that is about to be sent, perhaps once more."""
        if pending.value is not None:  # of an earlier run
            return self.expect_new(pending.task_id)
        pending.sent_by = _THIS
        pending.checked_at = time.monotonic()
        return pending

    def is_stale(self, pending: PendingResult) -> bool:
        """Return whether a poll might find what we were not notified of; then one should follow."""
        now = time.monotonic()
        is_stale = now - pending.checked_at > STALE or pending.checked_at <= self._interrupted_at
        if is_stale:
            pending.checked_at = now
        return is_stale

    def add_callback(self, pending: PendingResult, callback: Callback) -> bool:
        """Have a function called with the end, unless it is there: then return False."""
        is_urgent = pending.sent_by is not _THIS or self.is_stale(pending)
        with self._lock:
            self._remove_all()
            if pending.value is not None:
                return False
            pending.callbacks = [*(pending.callbacks or ()), callback]
            self._schedule.add(pending, 0.0 if is_urgent else time.monotonic() + POLL_NOTIFIED)
        self.on_awaited(is_urgent)
        return True

    def add_state_callback(
        self, pending: PendingResult, callback: Callback, seen: bytes | None
    ) -> bool:
        """Have a function called with the next state, unless there is a newer one than was seen."""
        with self._lock:
            self._remove_all()
            if pending.value is not None or pending.latest not in (None, seen):
                return False
            pending.state_callbacks = [*(pending.state_callbacks or ()), callback]
            due = pending.checked_at + POLL_FOLLOWED
            is_urgent = due <= time.monotonic()
            self._schedule.add(pending, 0.0 if is_urgent else due)
        self.on_awaited(is_urgent)
        return True

    def add_passive_callback(self, pending: PendingResult, callback: Callback) -> bool:
        """Have a function called with the end as by `add_callback`, but without polling for it."""
        with self._lock:
            if pending.value is not None:
                return False
            pending.passive_callbacks = [*(pending.passive_callbacks or ()), callback]
            return True

    def remove_callback(self, pending: PendingResult, callback: Callback) -> bool:
        """Return whether a function was still to be called; it will not be."""
        with self._lock:
            return self._remove(pending, callback)

    def remove_callback_later(self, pending: PendingResult, callback: Callback) -> None:
        """Remove a callback without taking the lock; for a moment, it may still be called."""
        # The garbage collector may end a generator in any thread, within a method of this, too.
        if pending.value is None:  # else it was called
            self._removed.append((pending, callback))

    def deliver(self, values: Iterable[tuple[str, bytes]], facts: bytes = b"") -> None:
        """Take in the stored values of tasks that have ended, and call their callbacks."""
        callbacks: list[Callback] = []
        with self._lock:
            self._remove_all()
            for number, (task_id, value) in enumerate(values):
                pending = self._known.get(task_id)
                if pending is None:
                    if value and task_id.startswith(STARTED_ID):
                        started = self._known.get(task_id.removeprefix(STARTED_ID))
                        callbacks += self._note_state(started, value)
                    continue
                if facts and pending.facts is None:
                    pending.facts = facts, number
                if pending.value is not None:
                    continue
                pending.value = value
                if pending.callbacks or pending.state_callbacks:
                    callbacks += (*(pending.callbacks or ()), *(pending.state_callbacks or ()))
                    pending.callbacks = pending.state_callbacks = None
                    self._stop_polling(pending)
                callbacks += pending.passive_callbacks or ()
                pending.passive_callbacks = None
        _call_each(callbacks)

    def deliver_states(self, polled: Iterable[tuple[PendingResult, bytes | None, bytes]]) -> None:
        """Take in what polls have found of tasks that have not ended; call state callbacks."""
        callbacks: list[Callback] = []
        with self._lock:
            for pending, before, value in polled:
                if pending.latest is before:  # else a notification during the poll is newer
                    callbacks += self._note_state(pending, value)
        _call_each(callbacks)

    def take_due(self, limit: int) -> list[PendingResult]:
        """Return the results to poll now, those first that have waited longest."""
        with self._lock:
            self._remove_all()
            now = time.monotonic()
            due = self._schedule.take(now, limit)
            for pending in due:
                if pending.state_callbacks:
                    pending.checked_at = now
            return due

    def next_poll(self) -> float:
        """Return when a poll is due, by the monotonic clock."""
        with self._lock:
            return self._schedule.next_due()

    def poll_all(self) -> None:
        """Poll for everything soon: notifications may have been missed."""
        with self._lock:
            self._interrupted_at = time.monotonic()
            self._schedule.make_all_due()
        self.on_awaited(True)  # noqa: FBT003

    def is_awaited(self) -> bool:
        """Return whether any result is polled for."""
        with self._lock:
            self._remove_all()
            return bool(self._schedule)

    def _note_state(self, pending: PendingResult | None, value: bytes) -> list[Callback]:
        """Note what is stored of a task that has not ended; return the callbacks to call."""
        if pending is None or pending.value is not None:
            return []
        pending.latest, pending.checked_at = value, time.monotonic()
        callbacks, pending.state_callbacks = pending.state_callbacks or [], None
        self._stop_polling(pending)
        return callbacks

    def _remove_all(self) -> None:
        while self._removed:
            with suppress(IndexError):  # a signal handler has taken it
                self._remove(*self._removed.popleft())

    def _remove(self, pending: PendingResult, callback: Callback) -> bool:
        lists = (pending.callbacks, pending.passive_callbacks, pending.state_callbacks)
        for callbacks in lists:
            if callbacks and callback in callbacks:
                callbacks.remove(callback)
                self._stop_polling(pending)
                return True
        return False

    def _stop_polling(self, pending: PendingResult) -> None:
        """Poll no more for a result that is awaited no more."""
        if not (pending.callbacks or pending.state_callbacks):
            self._schedule.discard(pending)


os.register_at_fork(after_in_child=renew_property_locks)
