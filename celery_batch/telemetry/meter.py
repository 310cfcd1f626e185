"""Counts of all batches of a worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from celery_batch.telemetry.report import BatchReport, End, RequestEnd
from celery_batch.telemetry.tally import Tally

__all__ = ["DeviceIdle", "Meter"]


class DeviceIdle:
    """
    Adds up the time in which a worker's pool processes ran no model.

    That is the time between model calls, whatever a process does meanwhile, and the time
    until a process that replaces another has its first batch.

    Args:
        since: When all processes were ready, on the monotonic clock.
    """

    def __init__(self, since: float) -> None:
        #: The seconds of all processes together up to `_updated`.
        self._total = 0.0
        self._updated = since
        self._busy = self._returned = 0.0
        #: When the last model call of each process ended; on the threads pool calls overlap.
        self._ended: dict[int, float] = {}

    def ran(self, pid: int, began: float, ended: float) -> None:
        """
        Record that a process ran a model call.

        Args:
            pid: The process.
            began: On the monotonic clock.
            ended: On the monotonic clock.
        """
        self._busy += self._since_last_end(pid, began, ended)
        self._ended[pid] = max(ended, self._ended.get(pid, ended))

    def seconds(self, now: float, busy: Mapping[int, float], processes: int) -> float:
        """
        Return how long processes have been idle; the number never decreases.

        Args:
            now: On the monotonic clock.
            busy: The processes that have a batch now, and since when.
            processes: How many processes there are; an added one counts from the last call.
        """
        self._total += processes * (now - self._updated)
        self._updated = now
        running = sum(self._since_last_end(pid, began, now) for pid, began in busy.items())
        self._returned = max(self._returned, self._total - self._busy - running)
        return self._returned

    def _since_last_end(self, pid: int, began: float, ended: float) -> float:
        return max(ended - max(began, self._ended.get(pid, began)), 0.0)


class Meter:
    """
    Counts batches and requests, task by task.

    It has no clock and no lock: its user locks it where several threads share it.

    Args:
        since: When counting begins, on the monotonic clock.
    """

    def __init__(self, since: float) -> None:
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.since = since
        self.idle = DeviceIdle(since)

    def add(self, report: BatchReport) -> None:
        """Add one batch."""
        self.tallies[report.task].add(report)
        work, pid = report.work, report.pid
        if pid is None:
            return
        if work.began is not None and work.ended is not None:
            self.idle.ran(pid, work.began, work.ended)
        if report.end in {End.LOST, End.TIME_LIMIT} and report.taken is not None:
            self.idle.ran(pid, *report.taken)

    def add_outcome(self, task: str, outcome: RequestEnd, count: int = 1) -> None:
        """Add requests that ended without a batch."""
        self.tallies[task].outcomes[outcome] += count

    def copy(self) -> dict[str, Tally]:
        """Return a copy of the counts, by task."""
        return deepcopy(dict(self.tallies))

    def summary(self, task: str) -> dict[str, Any]:
        """Return a task's counts as plain data."""
        return self.tallies.get(task, Tally()).summary()
