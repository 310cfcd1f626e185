"""How many items wait in a queue, as far as this process knows.

Rules:

1. What a look at the broker has found, and what was let in since, counts as waiting.  That
   something left, only a look can say: who takes messages takes many at once and then none
   for long, so nothing follows from what left before.
2. What is let in is on its way for a while.  A look that began before it had landed in the
   queue may have missed it, so it counts beside what that look has found; but never more than
   was counted before the look, unless the look itself has found more.
3. Where nothing is known yet, the queue is taken for empty until the first look, and what was
   let in meanwhile counts.  Nobody is refused only where no look comes to anything.
4. Where the broker could not be reached, by a call or by a look, all that was let in counts
   until the next look: no more calls than may wait try a broker that is away.

So a process that is alone with a queue never lets in more than the limit says.  Pure but for
its guard: it is told the time.

The thread looks while calls are made, and ends a while after the last.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import TimeoutError as RedisSilent

from celery_batch.broker_depth import DepthReader, can_read_depth, open_depth_reader

__all__ = [
    "FRESH",
    "INTERVAL",
    "Depth",
    "DepthWatch",
    "Landed",
]


#: Seconds for which somebody who asks waits for a look, before all may come; and between two
#: looks, that a rate can be told from.
FRESH = 2.0


#: Seconds over which the rate of leaving is averaged: they leave in batches.
_MEMORY = 2.0


#: Seconds that a caller is told to wait: at least, where nothing is known, and at most.
_SOONEST, _USUAL, _LATEST = 0.05, 1.0, 60.0


class Landed(NamedTuple):
    """What this process has let in and is in the queue for sure, or never will be."""

    items: int = 0
    messages: int = 0


class _Look(NamedTuple):
    """How many messages waited, what had landed before, and when that was."""

    waiting: int
    messages: int
    time: float


class Depth:
    """What is known of one queue."""

    def __init__(self) -> None:
        #: Items that this process has let pass to it.
        self.items = 0
        #: When somebody last asked.
        self.asked = -math.inf
        #: Messages a second that leave it; 0 where none was seen to.
        self.rate = 0.0
        self._landed = Landed()
        #: What waits, less all that was ever let in.
        self._rest = 0
        self._look: _Look | None = None
        #: When somebody asked first since the last look.
        self._unanswered: float | None = None
        self._is_lost = False
        self._has_failed = False
        #: Reentrant, since a signal's handler may call a task, too.
        self._guard = threading.RLock()

    def ask(self, now: float) -> None:
        """
        Take down that somebody wants to know.

        Args:
            now: Seconds, of a clock that never goes back.
        """
        self.asked = now
        if self._unanswered is None:
            self._unanswered = now

    def let_in(self, items: int, most: int, now: float) -> int | None:
        """
        Count items in if there is room for all of them; else return how many wait.

        Args:
            items: How many.
            most: How many may wait.
            now: Seconds, of the same clock.
        """
        with self._guard:
            waiting = self.at(now)
            if waiting is not None and waiting + items > most:
                return waiting
            self.items += items
            return None

    def land(self, items: int, messages: int) -> None:
        """
        Take down that what was let in is on its way no more.

        Args:
            items: How many.
            messages: In how many messages they came: a chunk is one.
        """
        with self._guard:
            self._landed = Landed(self._landed.items + items, self._landed.messages + messages)

    def landed(self) -> Landed:
        """Return what a look that begins now will find, but for what has left."""
        return self._landed

    def note(self, waiting: int, landed: Landed, now: float) -> None:
        """
        Take down what a look has found.

        Args:
            waiting: Messages in the queue.
            landed: What had landed when it began.
            now: Seconds, of the same clock.
        """
        with self._guard:
            with_those_on_their_way = waiting - landed.items
            self._rest = max(waiting - self.items, min(self._rest, with_those_on_their_way))
            self._unanswered, self._is_lost, self._has_failed = None, False, False
            before, self._look = self._look, _Look(waiting, landed.messages, now)
        if before is None or now <= before.time or now - before.time > FRESH:
            self.rate = 0.0
            return
        passed = now - before.time
        left = max(before.waiting + landed.messages - before.messages - waiting, 0)
        self.rate += (left / passed - self.rate) * min(passed / _MEMORY, 1.0)

    def lose(self) -> None:
        """Take down that a look came to nothing, although the broker answers."""
        self._is_lost = True

    def fail(self) -> None:
        """Take down that a call or a look could not reach the broker."""
        self._has_failed = True

    @property
    def is_seen(self) -> bool:
        """Whether a look has come to something, or to nothing."""
        return self._is_lost or self._has_failed or self._look is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether the broker may be away, for all that is known."""
        return self._has_failed or self._look is None

    def has_waited(self, seconds: float, now: float) -> bool:
        """
        Return whether somebody has asked, and no look has come to anything, for so long.

        Args:
            seconds: For how long.
            now: Seconds, of the same clock.
        """
        return self._unanswered is not None and now - self._unanswered >= seconds

    def forget(self) -> None:
        """Take down that nobody looks any more: the next who asks begins anew."""
        with self._guard:
            self._rest = -self._landed.items
            self._look = self._unanswered = None
            self._is_lost, self._has_failed, self.rate = False, False, 0.0

    def at(self, now: float) -> int | None:
        """
        Return how many items wait by now; None where that is not known.

        Args:
            now: Seconds, of the same clock.
        """
        since = self._unanswered
        is_late = since is not None and now - since > FRESH and not self._has_failed
        if self._is_lost or is_late:
            return None
        return self._rest + self.items

    def seconds_until(self, room: float) -> float:
        """
        Return after how many seconds a caller may find room.

        Args:
            room: How many items have to leave first.
        """
        if self.rate <= 0.0:
            return _USUAL
        return min(max(room / self.rate, _SOONEST), _LATEST)


logger = logging.getLogger(__name__)


#: Seconds from one look to the next; and at least, where callers find little room.
INTERVAL, _SOON = 0.05, 0.005


#: Most seconds from the first question about a queue for which calls wait for a first look.
_FIRST = 0.25


#: Part of the time that looks may take of a thread whose callers find little room.
_SHARE = 0.1


#: Seconds after the last question for which looks go on, and after which the thread ends.
_LINGER, _IDLE = 1.0, 5.0


#: Part of the time since the last question after which what waits is looked at again.
_SLACK = 0.05


#: How a look is told that the broker cannot be reached.
_AWAY = (OperationalError, OSError, RedisAway, RedisSilent, RecoverableConnectionError)


#: Most seconds to the next try while the broker is away, and to the next look.
_LONGEST_PAUSE = 1.0


class DepthWatch:
    """
    One app's watch over its queues.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app
        self._can_look = can_read_depth(app)
        self._depths: dict[str, Depth] = {}
        self._guard = threading.Lock()
        #: Free when rung, as a signal's handler may ring, too: somebody asks while the thread
        #: sleeps, or finds little room while it pauses.
        self._waker = threading.Lock()
        self._waker.acquire()
        self._is_asleep = False
        self._thread: threading.Thread | None = None
        self._look: DepthReader | None = None
        self._is_failing = False

    @classmethod
    def of(cls, app: Any) -> DepthWatch:
        """Return the app's watch in this process; a fork has its own."""
        found: DepthWatch | None = app.__dict__.get("batch_depth_watch")
        if found is None or found.pid != os.getpid():
            found = app.__dict__["batch_depth_watch"] = cls(app)
        return found

    def depth(self, queue: str, now: float) -> Depth:
        """
        Return what is known of a queue, and have it looked at soon.

        Args:
            queue: Its name.
            now: Seconds, of the monotonic clock.
        """
        depth = self._depths.get(queue)
        if depth is None:
            depth = Depth()
            if not self._can_look:
                depth.lose()
            depth = self._depths.setdefault(queue, depth)
        depth.ask(now)
        if self._is_asleep or self._thread is None or not self._thread.is_alive():
            self._wake()
        return depth

    def await_look(self, depth: Depth) -> None:
        """
        Wait for a first look at a queue, for a moment: until it has come to something or failed.

        Args:
            depth: What is known of the queue.
        """
        # No lock: a signal's handler may call a task while its thread waits here.
        while self._is_worth_waiting(depth):
            time.sleep(_SOON)

    async def first_look(self, depth: Depth) -> None:
        """
        Wait as `await_look`, from a coroutine.

        Args:
            depth: What is known of the queue.
        """
        while self._is_worth_waiting(depth):  # noqa: ASYNC110 (a thread looks, for many loops)
            await asyncio.sleep(_SOON)

    def _is_worth_waiting(self, depth: Depth) -> bool:
        """Return whether a first look may come soon; have it hurry."""
        if depth.is_seen or depth.has_waited(_FIRST, time.monotonic()):
            return False
        self.hurry()
        return True

    def hurry(self) -> None:
        """Have queues looked at soon: there is little room."""
        with suppress(RuntimeError):  # rung already
            self._waker.release()

    def _wake(self) -> None:
        if self._is_asleep:
            self.hurry()
        if not self._can_look or not self._guard.acquire(blocking=False):
            return  # somebody does
        try:
            if self._thread is None or not self._thread.is_alive():
                self._is_asleep = False
                name = "celery-batch-depths"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            for depth in list(self._depths.values()):
                depth.lose()
        finally:
            self._guard.release()

    def _run(self) -> None:
        try:
            pause = INTERVAL
            while True:
                began, worked = time.monotonic(), time.thread_time()
                wanted = self._wanted(began)
                if not wanted:
                    if not self._sleep():
                        return
                elif self._refresh(wanted):
                    # Not the time that other threads had the interpreter meanwhile.
                    took = time.thread_time() - worked
                    pause = _pause(began - max(depth.asked for _, depth in wanted))
                    soon = min(max(took / _SHARE, _SOON), INTERVAL)
                    time.sleep(soon)
                    self._waker.acquire(timeout=max(pause - soon, 0.0))
                else:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    time.sleep(pause)
        finally:
            self._let_go()

    def _wanted(self, now: float) -> list[tuple[str, Depth]]:
        """Return the queues that somebody asks for, or where something was seen to wait."""
        # What waits is followed to its end: whoever asks after a pause is told of now.
        return [
            (queue, depth)
            for queue, depth in list(self._depths.items())
            if depth.asked >= now - _LINGER or depth.at(now)
        ]

    def _sleep(self) -> bool:
        """Sleep until somebody asks; return False if nobody does."""
        self._is_asleep = True
        for depth in list(self._depths.values()):
            if depth.asked < time.monotonic() - _LINGER:
                depth.forget()
        # Once more: who asked just now found us awake.
        if not self._wanted(time.monotonic()) and not self._waker.acquire(timeout=_IDLE):
            return False
        self._is_asleep = False
        return True

    def _refresh(self, wanted: list[tuple[str, Depth]]) -> bool:
        try:
            self._look_at(wanted)
        except Exception as error:  # noqa: BLE001 (whatever it is, calls have to go on)
            is_away = isinstance(error, _AWAY)
            if not self._is_failing:
                then = "max_queue calls at most are tried" if is_away else "no call is refused"
                logger.warning("The queue's length is not known, so %s: %s", then, error)
            self._is_failing = True
            for _, depth in wanted:
                depth.fail() if is_away else depth.lose()
            self._let_go()
            return False
        self._is_failing = False
        return True

    def _look_at(self, wanted: list[tuple[str, Depth]]) -> None:
        is_old = self._look is not None
        try:
            for queue, depth in wanted:
                self._look = self._look or open_depth_reader(self._app)
                landed = depth.landed()
                depth.note(self._look.count(queue), landed, time.monotonic())
        except Exception:
            self._let_go()
            if not is_old:
                raise
            self._look_at(wanted)  # it may be the connection alone that was lost

    def _let_go(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            with suppress(Exception):
                look.close()


def _pause(quiet: float) -> float:
    """Return the seconds to the next look, that many after the last question."""
    return min(max(quiet * _SLACK, INTERVAL), _LONGEST_PAUSE)
