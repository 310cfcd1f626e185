"""
Keeps what is known of the queues' depths fresh, on one thread for each app and process.

The thread looks while calls are made, and ends a while after the last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import TimeoutError as RedisSilent

from celery_batch.client.depth import Depth
from celery_batch.depth_look import Look, can_look, open_look

__all__ = ["INTERVAL", "DepthWatch"]

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
_LATEST = 1.0


class DepthWatch:
    """
    One app's watch over its queues.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app
        self._can_look = can_look(app)
        self._depths: dict[str, Depth] = {}
        self._guard = threading.Lock()
        #: Free when rung, as a signal's handler may ring, too: somebody asks while the thread
        #: sleeps, or finds little room while it pauses.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_asleep = False
        self._thread: threading.Thread | None = None
        self._look: Look | None = None
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
            self._bell.release()

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
                    self._bell.acquire(timeout=max(pause - soon, 0.0))
                else:
                    pause = min(2 * pause, _LATEST)
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
        if not self._wanted(time.monotonic()) and not self._bell.acquire(timeout=_IDLE):
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
                self._look = self._look or open_look(self._app)
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
    return min(max(quiet * _SLACK, INTERVAL), _LATEST)
