"""What a pool process says of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from billiard.einfo import ExceptionInfo

from celery_batch.telemetry.report import NO_WORK, Work

__all__ = ["BatchEnd", "Fate", "Refused", "Settled", "error_info"]

#: What Celery's request handler expects of a finished task: failed, result or error, runtime.
Settled = tuple[int, Any, float]


class Fate(Enum):
    """What kept requests from having an answer."""

    BROKE_OFF = auto()  # the run ended early, and one of them may be to blame
    NOT_STORED = auto()  # they ran, and their results could not be stored
    REFUSED = auto()  # the process was of no use, and ran nothing


@dataclass(frozen=True, slots=True)
class Refused:
    """
    A message whose body is not what it has to be, as its pool process was the first to see.

    Args:
        reason: What is wrong with it.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """
    What a pool process says of a batch.

    Args:
        settled: For each request what Celery's tracer made of it, in order; the error of
            one whose failure is still to be stored; `Refused` for one that is none; None for
            one that has no answer and is to run again.
        work: What it was to the model.
        safe_size: Most items that fit into memory; None if nothing ran out of it.
        broken: Why this process is of no more use, if it is.
        fate: What kept those that have no answer from it.
    """

    settled: list[Settled | ExceptionInfo | Refused | None]
    work: Work = NO_WORK
    safe_size: int | None = None
    broken: str | None = None
    fate: Fate = Fate.BROKE_OFF


def error_info(error: Exception) -> ExceptionInfo:
    """Wrap an error as the pool would."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()
