"""Who hears of answers, and what callers hold meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from celery_batch.asking import Asking
from celery_batch.client.listener import listener_for
from celery_batch.client.result import BatchResult

__all__ = ["expected", "foreseen"]


def expected(task: Any, task_id: str, listener: Any, frozen: Any = None) -> Any:
    """
    Return the result of a call that is about to be sent.

    Args:
        task: The task that is called.
        task_id: The call's id.
        listener: Who hears its answer; None for Celery's own way.
        frozen: The result, if there is one already.
    """
    result = task.AsyncResult(task_id) if frozen is None else frozen
    if listener is not None and isinstance(result, BatchResult):
        listener.expect(result)
    return result


def foreseen(app: Any, tasks: Iterable[Any], frozen: dict[str, Any]) -> Iterator[Any]:
    """
    Have the members of a group hear of their answers, where they are batch tasks.

    Args:
        app: The Celery app.
        tasks: Of each member its signature, its result and the group's id.
        frozen: Is given the results that hear, by their tasks' ids.
    """
    for signature, result, group_id in tasks:
        if isinstance(result, BatchResult) and not signature.subtask_type:
            task = app.tasks.get(signature.task)
            is_told = isinstance(task, Asking) and task.backend is app.backend
            if is_told and listener_for(app) is not None:
                frozen[result.id] = result
        yield signature, result, group_id
