"""
How many items wait in a queue, as far as this process knows.

Rules:

1. What a measurement has found, and what was admitted since, counts as waiting.  Only the next
   measurement shows that something has left: a worker takes many messages at once and then none
   for long, so the rate of leaving does not tell what has left.
2. An admitted item is on its way for a while.  A measurement that began before it arrived in the
   queue may have missed it, so the item counts in addition to what that measurement has found;
   but the sum is never more than was counted before, unless the measurement itself found more.
3. Until the first measurement the queue is taken for empty, and what was admitted meanwhile
   counts.  All calls are admitted only where measuring is impossible.
4. If a call or a measurement could not reach the broker, everything that was admitted counts
   until a measurement that began later: no more calls than may wait try to reach a lost broker.

So a process that alone sends to a queue never admits more than the limit.  `Depth` does no I/O
and is given the time.

A thread measures while calls are made, and ends some time after the last call.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from typing import Any, NamedTuple

from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.broker_depth import DepthReader
from celery_batch.client.background import BrokerPoller

__all__ = ["FRESH", "Depth", "DepthPoller", "Settled"]

logger = logging.getLogger(__name__)

#: Seconds for which calls wait for a measurement before all are admitted; and most seconds
#: between two measurements from which a rate can be computed.
FRESH = 2.0

#: Seconds over which the rate of leaving is averaged: messages leave in batches.
_RATE_SECONDS = 2.0

#: `retry_after` of a refused call in seconds: at least, without a known rate, and at most.
_SHORTEST_RETRY, _USUAL_RETRY, _LONGEST_RETRY = 0.05, 1.0, 60.0

#: Seconds from one measurement to the next; and at least, where callers find little room.
INTERVAL, _SHORTEST_INTERVAL = 0.05, 0.005

#: Most seconds from the first call on a queue for which calls wait for a first measurement.
_FIRST = 1.0

#: Part of the time that measurements may take of a thread whose callers find little room.
_SHARE = 0.1

#: Seconds after the last call for which measuring goes on.
_LINGER = 1.0

#: Part of the time since the last call after which what waits is measured again.
_SLACK = 0.05

#: Most seconds to the next try while the broker is away, and to the next measurement.
_LONGEST_PAUSE = 1.0

#: Errors of a measurement that say that the broker cannot be reached.
_UNREACHABLE = (
    OperationalError,
    OSError,
    RedisConnectionError,
    RedisTimeoutError,
    RecoverableConnectionError,
)


class Settled(NamedTuple):
    """What this process has admitted and is in the queue by now, or never will be."""

    items: int = 0
    messages: int = 0
    #: Calls that could not reach the broker.
    failures: int = 0


class _Measurement(NamedTuple):
    waiting: int
    messages: int  # messages that were settled when it began
    time: float


class Depth:
    """What is known of one queue; `now` is of a clock that never goes back."""

    def __init__(self) -> None:
        #: Items that this process has admitted to it.
        self.items = 0
        #: When the last call needed it.
        self.last_call = -math.inf
        #: Messages a second that leave it; 0 where none was seen to.
        self.rate = 0.0
        #: What a measurement that begins now will find, but for what has left.
        self.settled = Settled()
        #: What waits, less all that was ever admitted.
        self._offset = 0
        self._last: _Measurement | None = None
        #: When the first call since the last measurement needed one.
        self._unmeasured_since: float | None = None
        #: Whether measuring has failed although the broker answers.
        self.is_unknown = False
        #: Whether a call or a measurement could not reach the broker.
        self.is_unreachable = False
        #: Reentrant, since a signal handler may call a task, too.
        self._guard = threading.RLock()

    def note_call(self, now: float) -> None:
        """Note that a call needs a measurement."""
        self.last_call = now
        if self._unmeasured_since is None:
            self._unmeasured_since = now

    def admit(self, items: int, limit: int, now: float) -> int | None:
        """Count items if there is room for all of them; else return how many wait."""
        with self._guard:
            waiting = self.waiting(now)
            if waiting is not None and waiting + items > limit:
                return waiting
            self.items += items
            return None

    def settle(self, items: int, messages: int, failures: int = 0) -> None:
        """Note that items which were admitted have arrived or failed; a chunk is one message."""
        with self._guard:
            before = self.settled
            self.settled = Settled(
                before.items + items, before.messages + messages, before.failures + failures
            )
            self.is_unreachable |= failures > 0

    def record(self, waiting: int, settled: Settled, now: float) -> None:
        """Record how many messages wait, and what was settled when the measurement began."""
        with self._guard:
            with_those_on_their_way = waiting - settled.items
            self._offset = max(waiting - self.items, min(self._offset, with_those_on_their_way))
            self._unmeasured_since, self.is_unknown = None, False
            self.is_unreachable = self.settled.failures > settled.failures
            before, self._last = self._last, _Measurement(waiting, settled.messages, now)
        if before is None or now <= before.time or now - before.time > FRESH:
            self.rate = 0.0
            return
        passed = now - before.time
        left = max(before.waiting + settled.messages - before.messages - waiting, 0)
        self.rate += (left / passed - self.rate) * min(passed / _RATE_SECONDS, 1.0)

    @property
    def is_measured(self) -> bool:
        """Whether a measurement has succeeded or failed."""
        return self.is_unknown or self.is_unreachable or self._last is not None

    @property
    def may_be_unreachable(self) -> bool:
        """Whether the broker may be away, for all that is known."""
        return self.is_unreachable or self._last is None

    def has_waited(self, seconds: float, now: float) -> bool:
        """Return whether a call asked so many seconds ago, and no measurement came since."""
        return self._unmeasured_since is not None and now - self._unmeasured_since >= seconds

    def reset(self) -> None:
        """Note that nothing is measured any more: the next call begins anew."""
        with self._guard:
            self._offset = -self.settled.items
            self._last = self._unmeasured_since = None
            self.is_unknown, self.is_unreachable, self.rate = False, False, 0.0

    def waiting(self, now: float) -> int | None:
        """Return how many items wait by now; None where that is not known."""
        since = self._unmeasured_since
        is_late = since is not None and now - since > FRESH and not self.is_unreachable
        if self.is_unknown or is_late:
            return None
        return self._offset + self.items

    def seconds_until(self, room: float) -> float:
        """Return after how many seconds a caller may find room for some items."""
        if self.rate <= 0.0:
            return _USUAL_RETRY
        return min(max(room / self.rate, _SHORTEST_RETRY), _LONGEST_RETRY)


class DepthPoller(BrokerPoller):
    """Measures the queues of one app while its tasks are called."""

    thread_name = "celery-batch-depths"

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._depths: dict[str, Depth] = {}
        #: Whether the thread has to be woken to measure.
        self._is_asleep = True
        self._is_failing = False
        self._pause = INTERVAL

    def depth(self, queue: str, now: float) -> Depth:
        """Return what is known of a queue, and have it measured soon."""
        depth = self._depths.get(queue)
        if depth is None:
            depth = Depth()
            if not self._can_read:
                depth.is_unknown = True
            depth = self._depths.setdefault(queue, depth)
        depth.note_call(now)
        if self._is_asleep or not self._thread.is_alive:
            self.measure_soon()
        return depth

    def wait_for_first(self, depth: Depth) -> None:
        """Wait a moment for the first measurement of a queue, until it has succeeded or failed."""
        # No lock: a signal handler may call a task while its thread waits here.
        while self._may_come(depth):
            time.sleep(_SHORTEST_INTERVAL)

    async def await_first(self, depth: Depth) -> None:
        """Wait as `wait_for_first`, in a coroutine."""
        while self._may_come(depth):  # noqa: ASYNC110 (a thread measures, for many loops)
            await asyncio.sleep(_SHORTEST_INTERVAL)

    def _may_come(self, depth: Depth) -> bool:
        """Return whether a first measurement may come soon."""
        if depth.is_measured or depth.has_waited(_FIRST, time.monotonic()):
            return False
        self.measure_soon()
        return True

    def measure_soon(self) -> None:
        """Have queues measured soon: a call needs it, or finds little room."""
        if not self._can_read:
            return
        try:
            self._thread.wake()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            for depth in list(self._depths.values()):
                depth.is_unknown = True

    def _poll(self) -> float | None:
        began, worked = time.monotonic(), time.thread_time()
        wanted = self._wanted(began)
        self._is_asleep = not wanted
        if not wanted:
            for depth in list(self._depths.values()):
                if depth.last_call < began - _LINGER:
                    depth.reset()
            # Once more: a call that came just now did not wake this thread.
            return 0.0 if self._wanted(time.monotonic()) else None
        if not self._measure(wanted):
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            time.sleep(self._pause)
            return 0.0
        # Not the time that other threads had the interpreter meanwhile.
        took = time.thread_time() - worked
        shortest = min(max(took / _SHARE, _SHORTEST_INTERVAL), INTERVAL)
        time.sleep(shortest)
        since_last_call = began - max(depth.last_call for _, depth in wanted)
        self._pause = min(max(since_last_call * _SLACK, INTERVAL), _LONGEST_PAUSE)
        return max(self._pause - shortest, 0.0)

    def _wanted(self, now: float) -> list[tuple[str, Depth]]:
        """Return the queues on which calls were made of late, or where something waits."""
        # A queue is measured until it is empty: a call after a pause needs a fresh number.
        return [
            (queue, depth)
            for queue, depth in list(self._depths.items())
            if depth.last_call >= now - _LINGER or depth.waiting(now)
        ]

    def _measure(self, wanted: list[tuple[str, Depth]]) -> bool:
        """Measure queues; return whether the broker has answered."""

        def record_all(reader: DepthReader) -> None:
            for queue, depth in wanted:
                settled = depth.settled
                depth.record(reader.count(queue), settled, time.monotonic())

        try:
            self._read(record_all)
        except Exception as error:  # noqa: BLE001 (whatever it is, calls have to go on)
            is_unreachable = isinstance(error, _UNREACHABLE)
            if not self._is_failing:
                then = (
                    "max_queue calls at most are tried" if is_unreachable else "no call is refused"
                )
                logger.warning("The queue's length is not known, so %s: %s", then, error)
            self._is_failing = True
            for _, depth in wanted:
                depth.is_unreachable |= is_unreachable
                depth.is_unknown |= not is_unreachable
            return False
        self._is_failing = False
        return True
