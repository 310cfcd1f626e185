"""

Polls the results that no listener receives.

It also decodes large values, so that the thread that hears of results does not.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["SELDOM", "SMALL", "SOON", "Poll", "Poller"]

logger = logging.getLogger(__name__)

#: Asks once; returns whether it need not be called again.
Poll = Callable[[], bool]

#: Seconds before the first and most seconds between two rounds.
SOON, SELDOM = 0.01, 0.5

#: Seconds it sleeps for each second that a round has taken, and at most.
_REST, _LONGEST_REST = 4.0, 1.0

#: Seconds after which the thread ends for want of work.
_IDLE = 5.0

#: Bytes of a stored value that are decoded at once in the thread that hears of it.
SMALL = 4096


class Poller:
    """Calls polls in rounds, with growing pauses, until each of them has ended."""

    def __init__(self) -> None:
        self._fresh: deque[Poll] = deque()
        self._waiting: list[Poll] = []
        self._pause = SOON
        self._next_round = 0.0
        #: Reentrant, since a signal's handler may want a future, too.
        self._guard = threading.RLock()
        #: Free when rung.
        self._waker = threading.Lock()
        self._waker.acquire()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, app: Any) -> Poller:
        """Return the app's poller in this process; a fork has its own."""
        found = _pollers.get(app)
        return found if found is not None else _pollers.setdefault(app, cls())

    def add(self, poll: Poll) -> None:
        """
        Have a function called soon, and again until it returns True.

        Args:
            poll: Asks once; it raises nothing.

        Raises:
            RuntimeError: No thread can be started.
        """
        with self._guard:
            self._fresh.append(poll)
            with suppress(RuntimeError):  # rung already
                self._waker.release()
            if self._thread is None or not self._thread.is_alive():
                name = "celery-batch-futures"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            is_rung = self._waker.acquire(timeout=self._seconds_to_next())
            self._begin_with_fresh()
            if self._waiting:
                if time.monotonic() >= self._next_round:
                    self._go_round()
            elif not is_rung and self._ends():
                return

    def _seconds_to_next(self) -> float:
        return max(self._next_round - time.monotonic(), 0.0) if self._waiting else _IDLE

    def _begin_with_fresh(self) -> None:
        fresh = []
        with suppress(IndexError):
            while True:
                fresh.append(self._fresh.popleft())
        left = [poll for poll in fresh if not _is_over(poll)]
        if left:
            self._waiting += left
            self._pause, self._next_round = SOON, time.monotonic() + SOON

    def _go_round(self) -> None:
        began, before = time.monotonic(), len(self._waiting)
        self._waiting = [poll for poll in self._waiting if not _is_over(poll)]
        now = time.monotonic()
        is_found = len(self._waiting) < before
        self._pause = SOON if is_found else min(1.5 * self._pause, SELDOM)
        self._next_round = now + max(self._pause, min(_REST * (now - began), _LONGEST_REST))

    def _ends(self) -> bool:
        with self._guard:
            if self._fresh:
                return False
            self._thread = None  # who adds now starts another
            return True


def _is_over(poll: Poll) -> bool:
    try:
        return poll()
    except Exception:
        logger.exception("A future could not be told of its result")
        return True


_pollers: WeakKeyDictionary[Any, Poller] = WeakKeyDictionary()


def _begin_anew() -> None:
    global _pollers  # noqa: PLW0603 (their threads and locks are the parent's)
    _pollers = WeakKeyDictionary()


os.register_at_fork(after_in_child=_begin_anew)
