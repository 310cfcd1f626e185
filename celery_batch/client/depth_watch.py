"""
Keeps what is known of the queues' depths fresh, on one thread for each app and process.

The thread looks while calls are made, and ends a while after the last.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from celery_batch.client.depth import Depth
from celery_batch.depth_look import Look, can_look, open_look

__all__ = ["INTERVAL", "DepthWatch"]

logger = logging.getLogger(__name__)

#: Seconds from one look to the next.
INTERVAL = 0.05

#: Seconds after the last question for which looks go on, and after which the thread ends.
_LINGER, _IDLE = 1.0, 5.0

#: Most seconds to the next try while the broker is away.
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
        #: Free when rung, as a signal's handler may ring, too.
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
            depth = self._depths.setdefault(queue, Depth())
        depth.asked = now
        if self._is_asleep or self._thread is None or not self._thread.is_alive():
            self._wake()
        return depth

    def _wake(self) -> None:
        if self._is_asleep:
            with suppress(RuntimeError):  # rung already
                self._bell.release()
        if not self._can_look or not self._guard.acquire(blocking=False):
            return  # somebody does
        try:
            if self._thread is None or not self._thread.is_alive():
                self._is_asleep = False
                name = "celery-batch-depths"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        finally:
            self._guard.release()

    def _run(self) -> None:
        try:
            pause = INTERVAL
            while True:
                wanted = self._wanted(_LINGER)
                if wanted:
                    pause = INTERVAL if self._refresh(wanted) else min(2 * pause, _LATEST)
                    time.sleep(pause)
                elif not self._sleep():
                    return
        finally:
            self._let_go()

    def _wanted(self, seconds: float) -> list[tuple[str, Depth]]:
        since = time.monotonic() - seconds
        return [each for each in list(self._depths.items()) if each[1].asked >= since]

    def _sleep(self) -> bool:
        """Sleep until somebody asks; return False if nobody does."""
        self._is_asleep = True
        # Once more: who asked just now found us awake.
        if not self._wanted(INTERVAL) and not self._bell.acquire(timeout=_IDLE):
            return False
        self._is_asleep = False
        return True

    def _refresh(self, wanted: list[tuple[str, Depth]]) -> bool:
        try:
            look = self._look = self._look or open_look(self._app)
            for queue, depth in wanted:
                waiting = look.count(queue)
                # What is sent during the look may or may not be in it: rather let too many
                # come until the next one than send somebody away who has room.
                depth.note(waiting, time.monotonic())
        except Exception as error:  # noqa: BLE001 (whatever it is, calls have to go on)
            if not self._is_failing:
                logger.warning("Cannot look how many items wait, so all may come: %s", error)
            self._is_failing = True
            self._let_go()
            return False
        self._is_failing = False
        return True

    def _let_go(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            with suppress(Exception):
                look.close()
