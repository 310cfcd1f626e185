"""For how long devices were idle, by what their processes report of batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import zip_longest

__all__ = ["DeviceIdle"]


class DeviceIdle:
    """
    Adds up the time in which a worker's models had no batch, for each of its pool processes.

    A process is idle between the end of one batch's model call and the beginning of
    the next one's, whatever it does meanwhile: reading, decoding, storing results.
    What goes on in a model call is the model's own affair.  Where a process takes
    another's place, its device is idle meanwhile, however busy it is with loading.

    Args:
        since: When all processes were ready, on the monotonic clock.
        pids: Which these were.
    """

    def __init__(self, since: float, pids: Collection[int]) -> None:
        self._ended = dict.fromkeys(pids, since)
        #: Since when places of processes that are gone are idle, the longest first.
        self._vacant: list[float] = []
        #: When processes began that may have taken places of which nobody knew yet.
        self._new: list[float] = []
        self._idle = self._shown = 0.0
        self._asked = since

    def ran(self, pid: int, began: float, ended: float) -> None:
        """
        Take note that a process had a batch in its model.

        Args:
            pid: The process.
            began: When, on the monotonic clock.
            ended: Until when, likewise.
        """
        before = self._ended.get(pid)
        if before is None:
            before = self._place_for(began)
        self._idle += max(began - before, 0.0)
        self._ended[pid] = max(ended, before)

    def _place_for(self, began: float) -> float:
        """Return since when the place is idle that a new process takes."""
        if self._vacant:
            return self._vacant.pop(0)
        self._new.append(began)
        return began

    def lost(self, pid: int, began: float, ended: float) -> None:
        """Take note that a process has died with a batch in its model; see `ran`."""
        self.ran(pid, began, ended)
        self._vacant.append(self._ended.pop(pid))

    def seconds(self, now: float, busy: Mapping[int, float], alive: Collection[int]) -> float:
        """
        Return how long processes were idle up to now; it never becomes less.

        Args:
            now: On the monotonic clock.
            busy: Which processes have a batch now, and since when.
            alive: Which processes there are.
        """
        self._look_who_is_gone({*alive, *busy})
        self._asked = now
        new = sorted(began for pid, began in busy.items() if pid not in self._ended)
        idle = self._idle + sum(
            max(busy.get(pid, now) - ended, 0.0) for pid, ended in self._ended.items()
        )
        idle += sum(
            max(until - since, 0.0)
            for since, until in zip_longest(self._vacant, new[: len(self._vacant)], fillvalue=now)
        )
        self._shown = max(self._shown, idle)
        return self._shown

    def _look_who_is_gone(self, alive: Collection[int]) -> None:
        self._vacant += [self._ended.pop(pid) for pid in self._ended.keys() - alive]
        self._vacant.sort()
        taken = min(len(self._vacant), len(self._new))
        for since, until in zip(self._vacant, sorted(self._new), strict=False):
            self._idle += max(until - since, 0.0)
        del self._vacant[:taken]
        self._new.clear()
        places = max(len(alive) - len(self._ended), 0)
        for since in self._vacant[places:]:  # the pool has fewer processes now
            self._idle += max(self._asked - since, 0.0)
        del self._vacant[places:]
