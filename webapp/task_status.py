"""The state of one call, for HTTP."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from celery import states
from typing_extensions import NotRequired, TypedDict  # noqa: UP035 (pydantic wants both from there)

from celery_batch import as_lists, http_error
from celery_batch.web.errors import task_error
from webapp import tasks

__all__ = ["TaskStatus", "task_status"]


class TaskStatus(TypedDict):
    """A call's state, with an output or an error once it has ended."""

    id: str
    state: str
    output: NotRequired[Any]
    error: NotRequired[dict[str, Any]]


def task_status(task_id: UUID) -> TaskStatus:
    """Return a call's state, as the result backend has it: PENDING if the id is unknown."""
    result = tasks.TASK.AsyncResult(str(task_id))
    status = TaskStatus(id=result.id, state=result.state)
    if status["state"] == states.SUCCESS:
        status["output"] = as_lists(result.result)
    elif status["state"] in states.EXCEPTION_STATES:
        status["error"] = http_error(task_error(result.result)).body["error"]
    return status
