"""From a finished task to an output, or to an error that may be shown to a stranger."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from celery import states
from celery.result import AsyncResult

from celery_batch.errors import BatchError

__all__ = ["Failure", "Outcome", "outcome_of"]

log = logging.getLogger(__name__)

#: Characters of an error's message; some repeat their whole input.
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """
    Why one input has no output.

    Args:
        kind: The error's class, or ``ModelError`` for what is nobody else's business.
        message: For the client; never an internal detail.
        http: The status that fits when every input of a request failed.
    """

    kind: str
    message: str
    http: int

    def body(self) -> dict[str, str]:
        """Return what JSON says about it."""
        return {"type": self.kind, "message": self.message}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value or an error for one input."""

    output: Any = None
    failure: Failure | None = None


def outcome_of(result: AsyncResult) -> Outcome:
    """
    Return what became of one input.

    Args:
        result: Of a task that has ended.
    """
    if result.state == states.SUCCESS:
        return Outcome(output=result.result)
    if result.state == states.REVOKED:
        message = "The task of this input was revoked before it ran."
        return Outcome(failure=Failure("Revoked", message, HTTPStatus.SERVICE_UNAVAILABLE))
    return Outcome(failure=_failure(result.id, result.result))


def _failure(task_id: str, error: Any) -> Failure:
    """
    Tell a client as much of an error as was meant for it.

    ValueError and TypeError are how a model calls an input bad, and an error of ours
    with a 4xx status speaks to the caller.  Anything else speaks to the operator.
    """
    if isinstance(error, BatchError):
        described = (type(error).__doc__ or "").strip().splitlines()
        message = str(error) if error.http < HTTPStatus.INTERNAL_SERVER_ERROR else described[0]
        return Failure(type(error).__name__, _shortened(message), error.http)
    if isinstance(error, (ValueError, TypeError)):
        unprocessable = HTTPStatus.UNPROCESSABLE_ENTITY
        return Failure(type(error).__name__, _shortened(str(error)), unprocessable)
    log.error("task %s failed: %r", task_id, error)
    message = f"The model could not answer this input; its task is {task_id}."
    return Failure("ModelError", message, HTTPStatus.INTERNAL_SERVER_ERROR)


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
