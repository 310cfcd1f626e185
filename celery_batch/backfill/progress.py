"""How far a backfill is."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Clock", "Progress"]

#: Seconds without an answer after which people are told.
NO_ANSWER = 10.0

#: Seconds over which a rate is measured: long enough that it does not jump with each batch.
_RATE_SECONDS = 30.0

#: Seconds between two samples of how many rows are done.
_SAMPLE_EVERY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is."""

    done: int  # rows that were answered, in all runs together
    failed: int = 0  # those of them that have failed
    resumed: int = 0  # those of them that an earlier run has answered
    total: int | None = None  # rows of the input; None if that is not known
    rate: float = 0.0  # rows a second, lately
    pending: int = 0  # rows that were sent and have no answer yet
    window: int = 0  # most pending rows
    workers: int = 0  # how many workers have answered lately
    seconds: float = 0.0  # since this run began
    since_answer: float = 0.0  # seconds since the last answer
    paused: float = 0.0  # seconds for which this run was paused
    state: str = "running"  # ``running``, ``paused``, or ``writing`` the output

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
    """Counts the rows of a run after `done` rows of earlier ones, and measures its rate."""

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
