"""From a finished task to an output, or to an error that may be shown to a stranger."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

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


class Outcome(NamedTuple):
    """
    A value or an error for one input.

    Args:
        output: The value.
        failure: Why there is none.
        batch: What is known of the model call that it comes from.
    """

    output: Any = None
    failure: Failure | None = None
    batch: dict[str, Any] | None = None


def outcome_of(result: AsyncResult, *, explain: bool = False) -> Outcome:
    """
    Return what became of one input.

    Args:
        result: Of a task that has ended.
        explain: Whether to say what is known of its batch.
    """
    if result.state == states.SUCCESS:
        return Outcome(output=result.result, batch=_batch(result) if explain else None)
    if result.state == states.REVOKED and _has_expired(result):
        message = "No worker took the task of this input in time."
        return Outcome(failure=Failure("DeadlineExceeded", message, HTTPStatus.GATEWAY_TIMEOUT))
    if result.state == states.REVOKED:
        message = "The task of this input was revoked before it ran."
        return Outcome(failure=Failure("Revoked", message, HTTPStatus.SERVICE_UNAVAILABLE))
    return Outcome(failure=_failure(result.id, result.result))


def _has_expired(result: AsyncResult) -> bool:
    """Tell a task that a worker found expired from one that was revoked: Celery stores both so."""
    return str(result.result) == "expired"


def _failure(task_id: str, error: Any) -> Failure:
    """
    Tell a client as much of an error as was meant for it.

    A ValueError is how a model calls an input bad, and an error of ours with a 4xx status
    speaks to the caller.  Anything else, a TypeError too, is a mistake of somebody's program
    and speaks to the operator.
    """
    if isinstance(error, BatchError):
        # Of a class that says nothing of itself, as with python -OO, its name has to do.
        described, *_ = (type(error).__doc__ or "").strip().splitlines() or [type(error).__name__]
        message = str(error) if error.http < HTTPStatus.INTERNAL_SERVER_ERROR else described
        return Failure(type(error).__name__, _shortened(message), error.http)
    if isinstance(error, ValueError):
        unprocessable = HTTPStatus.UNPROCESSABLE_ENTITY
        return Failure(type(error).__name__, _shortened(str(error)), unprocessable)
    log.error("task %s failed: %r", task_id, error)
    message = f"The model could not answer this input; its task is {task_id}."
    return Failure("ModelError", message, HTTPStatus.INTERNAL_SERVER_ERROR)


def _batch(result: AsyncResult) -> dict[str, Any] | None:
    facts = getattr(result, "batch", None)
    if facts is None:
        return None
    return {"size": facts.size, "wait": facts.wait, "worker": facts.worker}


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
