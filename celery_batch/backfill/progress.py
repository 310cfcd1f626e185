"""How far a backfill is."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Clock", "Progress"]

#: Seconds over which a rate is measured: long enough that it does not jump with each batch.
_RATE_SECONDS = 30.0

#: Seconds between two samples of how many rows are done.
_SAMPLE_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    How far a job is.

    Args:
        done: Rows that were answered, in all runs together.
        failed: Those of them that have failed.
        resumed: Those of them that an earlier run has answered.
        total: Rows of the input; None if that is not known.
        rate: Rows a second, lately.
        pending: Rows that were sent and have no answer yet.
        window: Most pending rows.
        workers: How many workers have answered lately.
        seconds: Since this run began.
        since_answer: Seconds since the last answer.
        paused: Seconds for which this run was paused.
        state: ``running``, ``paused``, or ``writing`` the output.
    """

    done: int
    failed: int = 0
    resumed: int = 0
    total: int | None = None
    rate: float = 0.0
    pending: int = 0
    window: int = 0
    workers: int = 0
    seconds: float = 0.0
    since_answer: float = 0.0
    paused: float = 0.0
    state: str = "running"

    @property
    def left(self) -> float | None:
        """Seconds until the end at this rate; None if that is not known."""
        if self.total is None or not self.rate or self.state == "paused":
            return None
        return (self.total - self.done) / self.rate

    @property
    def average(self) -> float:
        """Rows a second of this run while it was not paused."""
        seconds = self.seconds - self.paused
        return (self.done - self.resumed) / seconds if seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "left": self.left}


class Clock:
    """
    Counts the rows of a run, and measures its rate.

    Args:
        total: Rows of the input; None if that is not known.
        done: Rows that earlier runs have answered.
        failed: Those of them that have failed.
    """

    def __init__(self, total: int | None, done: int = 0, failed: int = 0) -> None:
        self.done, self.failed = done, failed
        self._total, self._resumed = total, done
        self._began = self._updated = time.monotonic()
        self._samples = deque([(self._began, done)])
        self._paused = 0.0

    def progress(self, **others: Any) -> Progress:
        """Return how far it is; the other fields of `Progress` are given."""
        now = time.monotonic()
        if others.get("state") == "paused":
            self._paused += now - self._updated
            self._samples = deque([(now, self.done)])  # a pause is no part of the rate
        self._updated = now
        return Progress(
            done=self.done,
            failed=self.failed,
            resumed=self._resumed,
            total=self._total,
            rate=self._rate(now),
            seconds=now - self._began,
            paused=self._paused,
            **others,
        )

    def _rate(self, now: float) -> float:
        if now - self._samples[-1][0] >= _SAMPLE_EVERY:
            self._samples.append((now, self.done))
            while now - self._samples[0][0] > _RATE_SECONDS + _SAMPLE_EVERY:
                self._samples.popleft()
        since, before = self._samples[0]
        return (self.done - before) / (now - since) if now > since else 0.0
