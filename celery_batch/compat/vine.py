"""Uses of vine's private parts: the barriers of Celery's groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakSet

__all__ = ["BarrierCounter"]


class BarrierCounter:
    """Counts the ended members of barriers for several threads; vine's own count takes no lock."""

    def __init__(self, call_each: Callable[[Iterable[Callable[[], object]]], None]) -> None:
        #: Calls functions one after the other, whatever one of them raises.
        self._call_each = call_each
        #: Reentrant, since a signal handler may count while its own thread does.
        self._lock = threading.RLock()
        #: Those that were still being built when a member was counted.
        self._unfinished: WeakSet[Any] = WeakSet()

    def count(self, barrier: Any) -> None:
        """Count one member that has ended."""
        with self._lock:
            if barrier.ready or barrier.cancelled:
                return
            barrier._value += 1
            if not barrier.finalized:
                self._unfinished.add(barrier)
                return
        self._fire_if_complete(barrier)

    def complete(self) -> None:
        """Fire the barriers whose members had all ended before the barrier was finalized."""
        with self._lock:
            finalized = [barrier for barrier in self._unfinished if barrier.finalized]
            self._unfinished.difference_update(finalized)
        self._call_each(partial(self._fire_if_complete, barrier) for barrier in finalized)

    def _fire_if_complete(self, barrier: Any) -> None:
        with self._lock:
            if barrier.ready or barrier.p.ready or barrier._value < barrier.size:
                return
            barrier.ready = True
        barrier.p(*barrier.args, **barrier.kwargs)  # outside the lock: it may wait for a thread
