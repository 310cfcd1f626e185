"""What a batch was, once it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["NO_WORK", "BatchReport", "End", "Outcome", "Work"]


class End(StrEnum):
    """How a batch ended, as a whole."""

    ANSWERED = "answered"  # the pool process has said what became of each request
    LOST = "lost"  # its process died
    TIME_LIMIT = "time_limit"  # a hard limit struck, and its process was killed
    NOT_STORED = "not_stored"  # it ran, and its results could not be stored
    BROKE_OFF = "broke_off"  # the run ended early: a soft limit struck, or the device broke
    REFUSED = "refused"  # its process was of no use, and ran nothing
    ERROR = "error"  # the pool could not run it


class Outcome(StrEnum):
    """What became of a request."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    REJECTED = "rejected"  # or ignored, by a hook or by the batch function
    EXPIRED = "expired"
    REVOKED = "revoked"
    AGAIN = "again"  # no end: it runs again, in another batch


class Work(NamedTuple):
    """
    What a batch was to its model.

    Args:
        calls: How often the model was called.
        began: When first, on the monotonic clock; None if it was not called.
        ended: When its last answer was there, likewise.
        seconds: How long all calls took together.
        isolated: Items that were found to make their batch fail, and failed alone.
        out_of_memory: Calls for which memory did not suffice.
    """

    calls: int = 0
    began: float | None = None
    ended: float | None = None
    seconds: float = 0.0
    isolated: int = 0
    out_of_memory: int = 0


#: Of a batch whose model was not called.
NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class BatchReport:
    """
    What a batch was.

    Args:
        task: The batch task's name.
        requests: How many requests it had.
        rows: How many rows those had.
        most: How many rows it may have had: ``max_batch_size``.
        reason: Why it left.
        end: How it ended.
        outcomes: What became of how many requests.
        waits: Seconds each request waited for the model, from its arrival in the worker;
            empty if the model was not called.
        work: What it was to its model.
        poison: Requests that were found to take processes down.
        pid: The pool process that ran it.
        taken: When that took it, and when its end was heard, on the monotonic clock.
    """

    task: str
    requests: int
    rows: int
    most: int
    reason: str
    end: End
    outcomes: Mapping[Outcome, int]
    waits: Sequence[float] = ()
    work: Work = NO_WORK
    poison: int = 0
    pid: int | None = None
    taken: tuple[float, float] | None = None

    @property
    def fill(self) -> float:
        """Which share of its model calls' room was used; a large chunk takes several calls."""
        return self.rows / (-(-self.rows // self.most) * self.most) if self.rows else 0.0

    @property
    def wait(self) -> float:
        """Seconds that the request waited who waited longest."""
        return max(self.waits, default=0.0)

    def facts(self) -> dict[str, Any]:
        """Return it as plain data, for a log."""
        return {
            "task": self.task,
            "size": self.rows,
            "requests": self.requests,
            "reason": str(self.reason),
            "fill": round(self.fill, 4),
            "wait": round(self.wait, 6),
            "model_seconds": round(self.work.seconds, 6),
            "model_calls": self.work.calls,
            "end": str(self.end),
            "outcomes": {str(each): count for each, count in self.outcomes.items()},
            "pid": self.pid,
        }

    def __str__(self) -> str:
        what = "" if self.end is End.ANSWERED else f", {self.end}"
        of_rows = self.rows == self.requests
        size = str(self.rows) if of_rows else f"{self.rows} rows in {_requests(self.requests)}"
        counts = "".join(
            f", {count if of_rows else _requests(count)} {outcome}"
            for outcome, count in self.outcomes.items()
            if outcome != Outcome.SUCCEEDED
        )
        return (
            f"{self.task}: batch of {size} ({self.reason}),"
            f" waited {self.wait:.3f} s, model {self.work.seconds:.3f} s{what}{counts}"
        )


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"
