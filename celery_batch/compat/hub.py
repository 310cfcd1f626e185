"""Keeps kombu's event loop from sleeping while callbacks are ready."""

from __future__ import annotations

import logging
import time
from typing import Any

__all__ = ["wake_for_callbacks"]

logger = logging.getLogger(__name__)

_PRIVATE = ("_ready", "_ready_lock", "_wake_pending", "_waker")


def wake_for_callbacks(hub: Any) -> None:
    """
    Have an event loop run at once what is given to `call_soon` on its own thread.

    Kombu's loop runs these callbacks, then waits for events.  What a callback or a timer
    gives to `call_soon` waits with it, for seconds on an idle worker; so would the
    acknowledgement of a request that has ended.  (For other threads kombu wakes the
    loop itself, in the same way.)

    Args:
        hub: Celery's event loop.
    """
    missing = [name for name in _PRIVATE if not hasattr(hub, name)]
    if missing:
        logger.warning("this kombu has no %s: callbacks may be a second late", ", ".join(missing))
        return

    def wake_if_ready() -> None:
        with hub._ready_lock:  # noqa: SLF001 (there is no public way)
            wake = bool(hub._ready) and not hub._wake_pending  # noqa: SLF001
            hub._wake_pending = hub._wake_pending or wake  # noqa: SLF001
        if wake:
            hub._waker.wake()  # noqa: SLF001

    fire_timers = hub.fire_timers

    def fire_timers_on_time(*args: Any, **options: Any) -> float:
        """As kombu's, which sleeps for a second after ten timers, even if one is due."""
        delay = float(fire_timers(*args, **options))
        queue = hub.timer._queue  # noqa: SLF001
        return min(delay, max(queue[0].eta - time.monotonic(), 0.0)) if queue else delay

    hub.fire_timers = fire_timers_on_time
    hub.on_tick.add(wake_if_ready)
