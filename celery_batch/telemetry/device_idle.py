"""How long devices were idle, computed from the model calls of their processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import zip_longest

__all__ = ["DeviceIdle"]


class DeviceIdle:
    """
    Adds up the time in which a worker's pool processes ran no model.

    A process is idle between the end of one batch's model call and the beginning of the
    next one's, whatever it does meanwhile: reading, decoding, storing results.  When a
    process replaces another, the device is idle until the new one has loaded its model.

    Args:
        since: When all processes were ready, on the monotonic clock.
        pids: The processes.
    """

    def __init__(self, since: float, pids: Collection[int]) -> None:
        self._ended = dict.fromkeys(pids, since)
        #: When each process ended that has not been replaced, the earliest first.
        self._vacant: list[float] = []
        #: When each process began that may replace one whose end is not known yet.
        self._new: list[float] = []
        self._idle = self._returned = 0.0
        self._updated = since

    def ran(self, pid: int, began: float, ended: float) -> None:
        """
        Record that a process ran a model call.

        Args:
            pid: The process.
            began: On the monotonic clock.
            ended: On the monotonic clock.
        """
        before = self._ended.get(pid)
        if before is None:
            before = self._idle_since(began)
        self._idle += max(began - before, 0.0)
        self._ended[pid] = max(ended, before)

    def _idle_since(self, began: float) -> float:
        """Return since when the device of a new process has been idle."""
        if self._vacant:
            return self._vacant.pop(0)
        self._new.append(began)
        return began

    def lost(self, pid: int, began: float, ended: float) -> None:
        """Record that a process has died during a model call; see `ran`."""
        self.ran(pid, began, ended)
        self._vacant.append(self._ended.pop(pid))

    def seconds(self, now: float, busy: Mapping[int, float], alive: Collection[int]) -> float:
        """
        Return how long processes have been idle; the number never decreases.

        Args:
            now: On the monotonic clock.
            busy: The processes that have a batch now, and since when.
            alive: All processes.
        """
        self._remove_dead({*alive, *busy})
        self._updated = now
        new = sorted(began for pid, began in busy.items() if pid not in self._ended)
        idle = self._idle + sum(
            max(busy.get(pid, now) - ended, 0.0) for pid, ended in self._ended.items()
        )
        idle += sum(
            max(until - since, 0.0)
            for since, until in zip_longest(self._vacant, new[: len(self._vacant)], fillvalue=now)
        )
        self._returned = max(self._returned, idle)
        return self._returned

    def _remove_dead(self, alive: Collection[int]) -> None:
        self._vacant += [self._ended.pop(pid) for pid in self._ended.keys() - alive]
        self._vacant.sort()
        taken = min(len(self._vacant), len(self._new))
        for since, until in zip(self._vacant, sorted(self._new), strict=False):
            self._idle += max(until - since, 0.0)
        del self._vacant[:taken]
        self._new.clear()
        places = max(len(alive) - len(self._ended), 0)
        for since in self._vacant[places:]:  # the pool has fewer processes now
            self._idle += max(self._updated - since, 0.0)
        del self._vacant[places:]
