"""Counts the members of groups for Celery's barriers, in whatever thread they are heard of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

__all__ = ["Barriers"]

#: Seconds for which a barrier that is being built is kept, and looked at often.
YOUNG = 1.0


class Barriers:
    """
    Celery's barriers, counted from several threads; they know no lock of their own.

    One whose members all come while it is built never looks whether they have; then
    `whole` does.  One that nobody ever finishes is kept by its maker alone.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: When those that are being built counted their first member.
        self._young: dict[Any, float] = {}
        self._old: WeakSet[Any] = WeakSet()

    def __len__(self) -> int:
        """Return how many are being built, as far as we know."""
        return len(self._young) + len(self._old)

    def count(self, barrier: Any) -> None:
        """Count one member for a barrier, and call those who wait if it was the last."""
        with self._lock:
            if barrier.ready or barrier.cancelled:
                return
            barrier._value += 1  # noqa: SLF001
            if not barrier.finalized:
                if barrier not in self._old:
                    self._young.setdefault(barrier, time.monotonic())
                return
            if not _becomes_ready(barrier):
                return
        _call(barrier)  # not under the lock: it may wait for another thread

    def whole(self) -> tuple[list[Callable[[], object]], bool]:
        """Return what is to be called for those built meanwhile, and whether to look soon again."""
        found: list[Callable[[], object]] = []
        newest = time.monotonic() - YOUNG
        with self._lock:
            for barrier in (*self._young, *self._old):
                if barrier.finalized:
                    self._young.pop(barrier, None)
                    self._old.discard(barrier)
                    if _becomes_ready(barrier):
                        found.append(partial(_call, barrier))
                elif self._young.get(barrier, newest) < newest:
                    del self._young[barrier]
                    self._old.add(barrier)
            return found, bool(self._young)


def _becomes_ready(barrier: Any) -> bool:
    if barrier.ready or barrier.p.ready or barrier._value < barrier.size:  # noqa: SLF001
        return False
    barrier.ready = True
    return True


def _call(barrier: Any) -> None:
    barrier.p(*barrier.args, **barrier.kwargs)
