"""How far a backfill is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from celery_batch.backfill.window import Answered

__all__ = ["Clock", "Counts", "Progress"]

#: Seconds over which a rate is measured: a pause is soon forgotten, and a batch no jump.
_SPAN = 30.0

#: Seconds between two looks at how many rows are done.
_STEP = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    How far a job is.

    Args:
        done: Rows that have come to their end, in all runs together.
        failed: Those of them that have failed.
        resumed: Those of them that an earlier run has answered.
        total: Rows of the input; None if that is not known.
        rate: Rows a second, lately.
        flying: Rows on their way.
        window: Most rows on their way.
        workers: How many workers have answered lately.
        seconds: Since this run began.
        silent: Seconds since the last answer.
        paused: Those of this run's seconds for which it was paused.
        state: ``running``, ``paused``, or ``writing`` the output.
    """

    done: int
    failed: int = 0
    resumed: int = 0
    total: int | None = None
    rate: float = 0.0
    flying: int = 0
    window: int = 0
    workers: int = 0
    seconds: float = 0.0
    silent: float = 0.0
    paused: float = 0.0
    state: str = "running"

    @property
    def left(self) -> float | None:
        """Seconds until the end at this rate; None if that cannot be told."""
        if self.total is None or not self.rate or self.state == "paused":
            return None
        return (self.total - self.done) / self.rate

    @property
    def average(self) -> float:
        """Rows a second of this run while it was not paused."""
        seconds = self.seconds - self.paused
        return (self.done - self.resumed) / seconds if seconds > 0 else 0.0

    def told(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "left": self.left}


class Counts(Protocol):
    """What has come to its end, in all runs together."""

    #: As many as there are rows.
    done: Any

    #: How many of them have failed.
    failed: int

    def add(self, answers: Iterable[Answered]) -> None:
        """Take answers in."""


@dataclass(slots=True)
class Clock:
    """
    What this run has done, and in what time.

    Args:
        ledger: What was answered, as it grows.
        total: Rows of the input; None if that is not known.
    """

    ledger: Counts
    total: int | None
    _before: int = 0
    _since: float = field(default_factory=time.monotonic)
    _poll_schedule: deque[tuple[float, int]] = field(default_factory=deque)
    _told: float = 0.0
    _paused: float = 0.0

    def __post_init__(self) -> None:
        self._before = len(self.ledger.done)
        self._poll_schedule.append((self._since, self._before))
        self._told = self._since

    def progress(self, **facts: Any) -> Progress:
        """
        Return how far it is.

        Args:
            facts: What the ledger does not know.
        """
        now, done = time.monotonic(), len(self.ledger.done)
        if facts.get("state") == "paused":
            self._paused += now - self._told
            self._poll_schedule = deque(
                [(now, done)]
            )  # what was not sent tells nothing of the rate
        self._told = now
        return Progress(
            done=done,
            failed=self.ledger.failed,
            resumed=self._before,
            total=self.total,
            rate=self._rate(now, done),
            seconds=now - self._since,
            paused=self._paused,
            **facts,
        )

    def _rate(self, now: float, done: int) -> float:
        if now - self._poll_schedule[-1][0] >= _STEP:
            self._poll_schedule.append((now, done))
            while now - self._poll_schedule[0][0] > _SPAN + _STEP:
                self._poll_schedule.popleft()
        since, before = self._poll_schedule[0]
        return (done - before) / (now - since) if now > since else 0.0
