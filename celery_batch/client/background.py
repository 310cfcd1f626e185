"""What an app has once in each process, and threads that run only while there is work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

__all__ = ["OnDemandThread", "PerProcess"]

#: Seconds without work after which a thread ends.
IDLE = 5.0


class PerProcess:
    """An object that an app has once in each process; a fork makes its own."""

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app

    @classmethod
    def of(cls, app: Any) -> Self:
        """Return the app's object in this process."""
        objects = app.__dict__.get("batch_objects")
        if objects is None:
            objects = app.__dict__.setdefault("batch_objects", {})
        key = cls, os.getpid()
        found: Self | None = objects.get(key)
        # One for all threads, and one that a fork has from its parent is kept: what its end
        # would close belongs to the parent.
        return objects.setdefault(key, cls(app)) if found is None else found


class OnDemandThread:
    """
    A daemon thread that starts when there is work, and ends when there was none for a while.

    Args:
        name: Of the thread.
        work: Does what is due; returns the seconds until more is, or None if there is no more.
    """

    def __init__(self, name: str, work: Callable[[], float | None]) -> None:
        self._name = name
        self._work = work
        #: Released to wake the thread: a signal handler can do that, unlike setting an Event.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        #: Reentrant, since a signal handler may start the thread, too.
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """
        Have the work done soon, in a new thread if there is none.

        Raises:
            RuntimeError: No thread can be started.
        """
        with suppress(RuntimeError):  # it has been woken already
            self._wakeup.release()
        with self._guard:
            if not self.is_alive:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def sleep(self, seconds: float) -> bool:
        """Return whether the thread was woken before the time was over."""
        return self._wakeup.acquire(timeout=seconds)

    def _run(self) -> None:
        while True:
            pause = self._work()
            if not self.sleep(IDLE if pause is None else pause) and pause is None:
                with self._guard:
                    if not self._wakeup.acquire(blocking=False):
                        self._thread = None
                        return
