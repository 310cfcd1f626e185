"""Counts of all batches of a worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from celery_batch.telemetry.device_idle import DeviceIdle
from celery_batch.telemetry.report import BatchReport, End, Outcome
from celery_batch.telemetry.tally import Tally

__all__ = ["Meter"]


class Meter:
    """
    Counts batches and requests, task by task.

    It has no clock and no lock: its user locks it where several threads share it.

    Args:
        since: When counting begins, on the monotonic clock.
        pids: The pool processes that are ready by then.
    """

    def __init__(self, since: float, pids: Collection[int]) -> None:
        self.tallies: dict[str, Tally] = {}
        self.since = since
        self._idle = DeviceIdle(since, pids)

    def tally(self, task: str) -> Tally:
        """Return a task's counts."""
        if task not in self.tallies:
            self.tallies[task] = Tally()
        return self.tallies[task]

    def add(self, report: BatchReport) -> None:
        """Add one batch."""
        self.tally(report.task).add(report)
        work, pid = report.work, report.pid
        if pid is None:
            return
        if work.began is not None and work.ended is not None:
            self._idle.ran(pid, work.began, work.ended)
        if report.end in {End.LOST, End.TIME_LIMIT} and report.taken is not None:
            self._idle.lost(pid, *report.taken)

    def add_outcome(self, task: str, outcome: Outcome, count: int = 1) -> None:
        """Add requests that ended without a batch."""
        self.tally(task).outcomes[outcome] += count

    def idle(self, now: float, busy: Mapping[int, float], alive: Collection[int]) -> float:
        """Return how many seconds pool processes ran no model, together; see `DeviceIdle`."""
        return self._idle.seconds(now, busy, alive)

    def copy(self) -> dict[str, Tally]:
        """Return a copy of the counts, by task."""
        return {task: copy(tally) for task, tally in self.tallies.items()}

    def summary(self, task: str) -> dict[str, Any]:
        """Return a task's counts as plain data."""
        return self.tallies.get(task, Tally()).summary()
