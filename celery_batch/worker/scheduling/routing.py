"""Which batch tasks are routed to which queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery.exceptions import QueueNotFound

from celery_batch.task import BatchTask
from celery_batch.task_options import options_of_batches

__all__ = ["batch_tasks", "misplaced_options", "queue_of", "routed_queues", "served_tasks"]


def batch_tasks(app: Any) -> list[Any]:
    """Return all batch tasks of an app: any of them may come to any queue, named at the call."""
    return [task for _, task in sorted(app.tasks.items()) if isinstance(task, BatchTask)]


def misplaced_options(app: Any) -> Iterator[str]:
    """Yield what is wrong with each ordinary task that has options of batch tasks."""
    for name, task in sorted(app.tasks.items()):
        options = () if isinstance(task, BatchTask) else options_of_batches(type(task))
        if options:
            yield (
                f"{name}: {', '.join(options)} in an ordinary task, which runs one call at a"
                f" time; define it with base=BatchTask, or leave the options out"
            )


def served_tasks(app: Any) -> list[Any]:
    """Return the batch tasks that are routed to a queue that this worker consumes."""
    queues = app.amqp.queues.consume_from
    return [task for task in batch_tasks(app) if queue_of(app, task) in queues]


def routed_queues(app: Any, *, with_own: bool = False) -> set[str]:
    """Return the queues that an app's tasks are routed to, batch tasks and others."""
    found = set()
    for name, task in app.tasks.items():
        with suppress(QueueNotFound):  # its caller gets the error
            if with_own or not name.startswith("celery."):
                found.add(queue_of(app, task))
    return found


def queue_of(app: Any, task: Any) -> str:
    """Return the name of the queue that a task's messages go to."""
    options = {"queue": task.queue} if getattr(task, "queue", None) else {}
    # A router adds the queues that it does not know: before Celery 5.7 a worker without -Q
    # would consume them, too.
    queues = app.amqp.Queues({**app.amqp.queues})
    route = app.amqp.Router(queues=queues).route(options, task.name)
    queue = route.get("queue", app.conf.task_default_queue)
    return str(getattr(queue, "name", queue))
