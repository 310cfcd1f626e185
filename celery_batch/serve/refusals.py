"""What a client is told instead of an answer: ``{"error": text}``, and the task's id if any."""

from __future__ import annotations

import logging
from http import HTTPStatus

from celery.exceptions import TaskRevokedError
from starlette.responses import JSONResponse

from celery_batch.errors import BatchError

__all__ = ["Refusal", "refusal_of"]

logger = logging.getLogger(__name__)

#: Characters of an error's message; some repeat their whole input.
_LONGEST = 500

#: With these comes the time after which asking again makes sense.
_AGAIN_LATER = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}


class Refusal(Exception):
    """
    A request gets no answer.

    Args:
        status: The HTTP status.
        message: For the client.
        task_id: Of its task, to be looked for in the logs.
    """

    def __init__(self, status: int, message: str, task_id: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.task_id = task_id

    def response(self) -> JSONResponse:
        """Return it as HTTP has it."""
        body = {"error": str(self)} | ({"task_id": self.task_id} if self.task_id else {})
        headers = {"Retry-After": "1"} if self.status in _AGAIN_LATER else None
        return JSONResponse(body, self.status, headers)


def refusal_of(error: Exception, task_id: str) -> Refusal:
    """
    Tell a client as much of a failed task as is meant for it.

    ValueError is how a handle calls a request wrong, and so the client hears its words;
    an error of ours says by its class what it means.  Anything else is for the operator,
    and stands in the logs: a TypeError, say, is nearly always the handle's own mistake.

    Args:
        error: What the task failed with.
        task_id: The task's id.
    """
    if isinstance(error, BatchError):
        words = str(error) if error.http < HTTPStatus.INTERNAL_SERVER_ERROR else error.__doc__
        return Refusal(error.http, _short(words or ""), task_id)
    if isinstance(error, ValueError):
        return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, _short(str(error)), task_id)
    if isinstance(error, TaskRevokedError):  # too late for its client, or called back
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the request was not served", task_id)
    logger.error("task %s failed: %r", task_id, error)
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the handle failed", task_id)


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"
