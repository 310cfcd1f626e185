"""Whether one batch may be settled while the next one's model runs; both sides ask here."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_batch.task import BatchTask

__all__ = ["is_wanted", "may_overlap"]


def is_wanted(app: Any, processes: int) -> bool:
    """
    Say whether a worker's batches may overlap at all.

    Args:
        app: The Celery app.
        processes: Most pool processes that this worker will have.  With several, a
            batch that is ready is for whichever process is idle first.
    """
    conf = app.conf
    shared = conf.get("result_backend_thread_safe")  # one buffer of results, for two threads
    return bool(processes == 1 and conf.get("batch_overlap", True) and not shared)


def may_overlap(task: Any) -> bool:
    """
    Say whether a task's model may run on another thread than its items' tracers.

    What a ``__call__`` of its own sets up may be there for its own thread only, and so
    may the use of a backend of its own, given to the decorator or put there later.
    """
    return (
        isinstance(task, BatchTask)
        and type(task).__call__ is Task.__call__
        and type(task).backend is Task.backend
        and task._backend is None  # noqa: SLF001 (the property would make one)
    )
