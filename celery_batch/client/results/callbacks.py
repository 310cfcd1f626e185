"""Calls the callbacks of results, and counts the ended members of Celery's barriers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakSet

__all__ = ["BarrierCounter", "Callback", "call_each", "is_in_callback"]

logger = logging.getLogger(__name__)

#: Called once, without arguments, by the thread that receives the result.
Callback = Callable[[], object]

_local = threading.local()


def call_each(callbacks: Iterable[Callback]) -> None:
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


class BarrierCounter:
    """Counts the ended members of barriers for several threads; vine's own count takes no lock."""

    def __init__(self) -> None:
        #: Reentrant, since a signal handler may count while its own thread does.
        self._lock = threading.RLock()
        #: Those that were still being built when a member was counted.
        self._unfinished: WeakSet[Any] = WeakSet()

    def count(self, barrier: Any) -> None:
        """Count one member that has ended."""
        with self._lock:
            if barrier.ready or barrier.cancelled:
                return
            barrier._value += 1  # noqa: SLF001
            if not barrier.finalized:
                self._unfinished.add(barrier)
                return
        self._fire_if_complete(barrier)

    def complete(self) -> None:
        """Fire the barriers whose members had all ended before the barrier was finalized."""
        with self._lock:
            finalized = [barrier for barrier in self._unfinished if barrier.finalized]
            self._unfinished.difference_update(finalized)
        call_each(partial(self._fire_if_complete, barrier) for barrier in finalized)

    def _fire_if_complete(self, barrier: Any) -> None:
        with self._lock:
            if barrier.ready or barrier.p.ready or barrier._value < barrier.size:  # noqa: SLF001
                return
            barrier.ready = True
        barrier.p(*barrier.args, **barrier.kwargs)  # outside the lock: it may wait for a thread
