"""Timers, with an event loop or with threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["HubTimer", "ThreadTimer", "Timer", "keep_awake", "timer_for"]


logger = logging.getLogger(__name__)


class Timer(Protocol):
    """One call-back at a time; setting it again while it is set changes nothing."""

    def set(self, seconds: float) -> None:
        """Call back after so many seconds, unless an earlier call is already due."""

    def cancel(self) -> None:
        """Do not call back."""


class HubTimer:
    """
    An alarm on the worker's event loop.

    Args:
        hub: Celery's event loop.
        ring: Called on the loop with the seconds by which the loop was late.
    """

    def __init__(self, hub: Any, ring: Callable[[float], None]) -> None:
        self._hub = hub
        self._ring = ring
        self._entry: Any = None
        self._due = 0.0

    def set(self, seconds: float) -> None:
        """Call back after so many seconds, unless an earlier call is already due."""
        due = time.monotonic() + seconds
        if self._entry is not None:
            if self._due <= due:
                return
            self._entry.cancel()
        self._due = due
        self._entry = self._hub.call_later(seconds, self._fire)

    def cancel(self) -> None:
        """Do not call back."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.cancel()

    def _fire(self) -> None:
        self._entry = None
        self._ring(time.monotonic() - self._due)


class ThreadTimer:
    """
    An alarm for transports without an event loop.

    Celery's own timer thread may sleep a second past the time it was asked for;
    a request that lingers two milliseconds needs a thread of its own.

    Args:
        ring: Called on a thread of the alarm, with the seconds it was late.
    """

    def __init__(self, ring: Callable[[float], None]) -> None:
        self._ring = ring
        self._due: float | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def set(self, seconds: float) -> None:
        """Call back after so many seconds, unless an earlier call is already due."""
        due = time.monotonic() + seconds
        with self._changed:
            if self._due is not None and self._due <= due:
                return
            self._due = due
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="batch-alarm", daemon=True)
                self._thread.start()
            self._changed.notify()

    def cancel(self) -> None:
        """Do not call back."""
        with self._changed:
            self._due = None
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            due = self._await_due()
            try:
                self._ring(time.monotonic() - due)
            except Exception:
                # A thread that dies here would leave every later request waiting.
                logger.exception("Could not send off batches that are due")

    def _await_due(self) -> float:
        with self._changed:
            while self._due is None or (left := self._due - time.monotonic()) > 0:
                self._changed.wait(None if self._due is None else left)
            due, self._due = self._due, None
            return due


def timer_for(hub: Any, ring: Callable[[float], None]) -> Timer:
    """
    Return an alarm that suits the worker.

    Args:
        hub: Celery's event loop, or None where the transport has none.
        ring: Called with the seconds by which the call came late.
    """
    if hub is None:
        return ThreadTimer(ring)
    keep_awake(hub)
    return HubTimer(hub, ring)


def keep_awake(hub: Any) -> None:
    """
    Keep an event loop from sleeping over what was put off to its next pass.

    Kombu's loop runs what `call_soon` was given, then waits for events.  What is given
    from there, or by a timer, would wait with it, seconds on a quiet worker; and so
    would a finished request's acknowledgement.  (For other threads kombu wakes the
    loop itself, in the same way.)

    Args:
        hub: Celery's event loop.
    """

    def look_again() -> None:
        with hub._ready_lock:  # noqa: SLF001 (there is no public way)
            wake = bool(hub._ready) and not hub._wake_pending  # noqa: SLF001
            hub._wake_pending = hub._wake_pending or wake  # noqa: SLF001
        if wake:
            hub._waker.wake()  # noqa: SLF001

    fire_timers = hub.fire_timers

    def fire_and_look(*args: Any, **options: Any) -> float:
        """As kombu's, which after ten timers takes a second's rest, whatever is due."""
        delay = float(fire_timers(*args, **options))
        queue = hub.timer._queue  # noqa: SLF001
        return min(delay, max(queue[0].eta - time.monotonic(), 0.0)) if queue else delay

    hub.fire_timers = fire_and_look
    hub.on_tick.add(look_again)
