"""

Celery's task strategy, with a last step that queues requests for batches.

Revoked, expired, ETA, rate limits, received events and bookkeeping stay Celery's
code.  Where it would hand a request to the pool, the request joins its task queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from celery.worker import strategy
from celery.worker.consumer import Consumer
from celery.worker.state import task_reserved

from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.intake.fast_path import FastPath
from celery_batch.worker.intake.unrouted import add_unrouted

__all__ = ["batches"]


def batches(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
    """
    Return a handler for the messages of a batch task.

    Celery calls this for each connection; nothing of an old one is kept.

    Args:
        task: The batch task.
        app: The Celery app.
        consumer: Celery's consumer.
    """
    if not ConsumerContext.is_attached(consumer):
        return partial(_attach_and_handle, task, app, consumer)
    context = ConsumerContext.of(consumer)
    scheduler = context.scheduler
    task_queue = scheduler.task_queue(task)
    add: Callable[[Any], None] = partial(scheduler.add, task_queue)
    if task not in context.worker.tasks:
        add = partial(add_unrouted, consumer, task_queue)
    usual = strategy.default(task, app, _ConsumerProxy(consumer, add))
    return FastPath(consumer, scheduler, task, usual, add)


def _attach_and_handle(task: Any, app: Any, consumer: Any, *message: Any, **options: Any) -> Any:
    """Handle the first message of a batch task that was defined after this worker's start."""
    if not ConsumerContext.is_attached(consumer):  # else another task's message came first
        import_module("celery_batch.worker.scheduling.late_tasks").attach_steps(consumer)
    handle = consumer.strategies[task.name] = batches(task, app, consumer)
    return handle(*message, **options)


class _ConsumerProxy:
    """The consumer as Celery's strategy sees it, with another last step."""

    def __init__(self, consumer: Any, on_task_request: Callable[[Any], None]) -> None:
        self._consumer = consumer
        self.on_task_request = on_task_request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def apply_eta_task(self, request: Any) -> None:
        """As the consumer's own, which would hand the request to the pool."""
        task_reserved(request)
        if not request.revoked():  # or expired
            self.on_task_request(request)
        self._consumer.qos.decrement_eventually()

    # The consumer's own code, bound to this proxy so that it finds our last step.
    _limit_task = Consumer._limit_task  # noqa: SLF001
    _limit_post_eta = Consumer._limit_post_eta  # noqa: SLF001
    _schedule_bucket_request = Consumer._schedule_bucket_request  # noqa: SLF001
    _limit_move_to_pool = Consumer._limit_move_to_pool  # noqa: SLF001
