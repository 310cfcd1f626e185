"""A report of one batch that has ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["NO_REUSE", "NO_WORK", "BatchReport", "End", "RequestEnd", "Reuse", "Work"]


class End(StrEnum):
    """How a batch ended, as a whole."""

    ANSWERED = "answered"  # the pool process has returned each request's outcome
    LOST = "lost"  # the process died
    TIME_LIMIT = "time_limit"  # the process was killed by a hard time limit
    NOT_STORED = "not_stored"  # the results could not be stored
    BROKE_OFF = "broke_off"  # ended early by a soft time limit or a broken device
    REFUSED = "refused"  # the process' device is broken: nothing ran
    ERROR = "error"  # the pool could not run it


class RequestEnd(StrEnum):
    """How one run of a request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    REJECTED = "rejected"  # or ignored, by a hook or by the batch function
    EXPIRED = "expired"
    REVOKED = "revoked"
    AGAIN = "again"  # it runs again, in another batch


class Reuse(NamedTuple):
    """Rows of a batch that the model need not compute, and those that it had to."""

    hits: int = 0  # rows with a cached answer
    misses: int = 0  # rows that ran, where there is a cache
    duplicates: int = 0  # rows that got the output of an equal one in the batch


#: Of a batch whose task reuses no answers.
NO_REUSE = Reuse()


class Work(NamedTuple):
    """The model calls of a batch."""

    calls: int = 0
    #: When the first began, on the monotonic clock; None if there was none.
    began: float | None = None
    ended: float | None = None  # when the last ended, on the monotonic clock
    seconds: float = 0.0  # how long all calls took together
    isolated: int = 0  # items that made their batch fail, and failed alone
    out_of_memory: int = 0  # calls that ran out of memory
    cost: float = 0.0  # the sum of what all rows cost, where that is limited
    padded_cost: float = 0.0  # what all calls cost, with their padding
    reuse: Reuse = NO_REUSE  # how many rows did not run, and why
    padding_rows: int = 0  # rows that filled calls up to fixed sizes
    rows: int = 0
    collating: float = 0.0  # how long rows were collated on a thread beside that of the calls
    split: int = 0  # batches that raised, and whose items all succeeded in parts


#: Of a batch whose model was not called.
NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch that has ended."""

    task: str
    requests: int
    rows: int  # the number of their rows
    most: int  # the most rows the batch could have had: ``max_batch_size``
    reason: str  # why it left
    end: End  # how it ended
    outcomes: Mapping[RequestEnd, int]  # how many requests had each outcome
    #: Seconds each request waited for the model, from its arrival in the worker; empty if the model
    #: was not called.
    waits: Sequence[float] = ()
    work: Work = NO_WORK  # its model calls
    poison: int = 0  # requests that took processes down
    pid: int | None = None  # the pool process that ran it
    #: When the process accepted it, and when it ended, on the monotonic clock.
    taken: tuple[float, float] | None = None
    #: The most that one of its model calls could have cost; infinite for any.
    most_cost: float = math.inf

    @property
    def fill(self) -> float:
        """The used share of the room in its model calls: in rows or, if that is larger, in cost."""
        used = self.rows / (-(-self.rows // self.most) * self.most) if self.rows else 0.0
        room = self.work.calls * self.most_cost
        return max(used, min(self.work.padded_cost / room, 1.0)) if room else used

    @property
    def wait(self) -> float:
        """The longest wait of its requests, in seconds."""
        return max(self.waits, default=0.0)

    def facts(self) -> dict[str, Any]:
        """Return the report as plain data, for a log."""
        return {
            "task": self.task,
            "size": self.rows,
            "requests": self.requests,
            "reason": str(self.reason),
            "fill": round(self.fill, 4),
            "wait": round(self.wait, 6),
            "model_seconds": round(self.work.seconds, 6),
            "model_calls": self.work.calls,
            "cost": self.work.padded_cost,
            "end": str(self.end),
            "outcomes": {str(each): count for each, count in self.outcomes.items()},
            "pid": self.pid,
        }

    def __str__(self) -> str:
        end = "" if self.end is End.ANSWERED else f", {self.end}"
        has_chunks = self.rows != self.requests
        size = str(self.rows)
        if has_chunks:
            size = f"{_counted(self.rows, 'row')} in {_counted(self.requests, 'request')}"
        counts = "".join(
            f", {_counted(count, 'request') if has_chunks else count} {outcome}"
            for outcome, count in self.outcomes.items()
            if outcome != RequestEnd.SUCCEEDED
        )
        what = f"{self.task}: batch of {size} ({self.reason})"
        hits = self.work.reuse.hits
        cached = f", {hits} from the cache" if hits else ""
        return f"{what}{cached}{self._cost_text()}{self._times_text()}{end}{counts}"

    def _cost_text(self) -> str:
        cost, room = self.work.padded_cost, self.work.calls * self.most_cost
        limit = f" of {room:,.10g}" if math.isfinite(room) else ""
        return f", cost {cost:,.10g}{limit}" if cost else ""

    def _times_text(self) -> str:
        if self.work.began is not None:
            return f", waited {self.wait:.3f} s, model {self.work.seconds:.3f} s"
        # The main process knows of no model call, whether there was one or not.
        return f", {self.taken[1] - self.taken[0]:.3f} s in its process" if self.taken else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
