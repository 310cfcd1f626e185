"""Calls the scheduler back when the next batch is due, with an event loop or without one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from celery_batch.compat.kombu import wake_for_callbacks

__all__ = ["BatchTimer"]

logger = logging.getLogger(__name__)


class BatchTimer:
    """A timer with at most one callback ahead, which gets the seconds by which the call is late."""

    # Without an event loop each callback has a thread: Celery's timer thread may be a second late.

    def __init__(self, hub: Any, callback: Callable[[float], None]) -> None:
        self._call_later = _call_in_thread if hub is None else hub.call_later
        self._callback = callback
        self._entry: Any = None
        self._due = 0.0
        self._lock = threading.RLock()  # a signal handler may set it on top of us
        if hub is not None:
            wake_for_callbacks(hub)

    def set(self, seconds: float) -> None:
        """Call back after so many seconds, unless an earlier call is ahead."""
        due = time.monotonic() + seconds
        with self._lock:
            if self._entry is not None:
                if self._due <= due:
                    return
                self._entry.cancel()
            self._due = due
            self._entry = self._call_later(seconds, self._fire)

    def cancel(self) -> None:
        """Do not call back."""
        with self._lock:
            entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()

    def _fire(self) -> None:
        with self._lock:  # else `set` may store the entry after it has fired
            self._entry, due = None, self._due
        self._callback(time.monotonic() - due)


def _call_in_thread(seconds: float, function: Callable[[], None]) -> threading.Timer:
    def call() -> None:
        try:
            function()
        except Exception:
            logger.exception("Could not dispatch batches")

    timer = threading.Timer(seconds, call)
    timer.name, timer.daemon = "batch-timer", True
    timer.start()
    return timer
