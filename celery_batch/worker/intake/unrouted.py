"""

Batch tasks that arrive on a queue that they are not routed to.

A call may name any queue, so any batch task of the app may come to any worker.  Tasks that are
routed to a worker's queues are prepared at its start: their models are loaded, and the prefetch
is large enough for their batches.  Every other task is prepared when its first message comes: a
worker of ordinary tasks of the same app should not load models that it may never need.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from celery_batch.compat.kombu import consume_again
from celery_batch.config import milliseconds_warnings, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.scheduling import prefetch
from celery_batch.worker.scheduling.routing import batch_tasks, routed_queues
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["add_unrouted", "log_not_loaded", "log_policy"]

logger = logging.getLogger(__name__)

_REMEDY = "to have it loaded at the start, route the task here (task_routes)"


def log_policy(task: Any) -> None:
    """Log when the batches of a task leave."""
    policy = policy_of(task)
    for warning in milliseconds_warnings(task.name, policy):
        logger.warning("%s", warning)
    logger.info(
        "%s: batches of up to %d, max_wait %g s, linger %g s",
        task.name,
        policy.max_batch_size,
        policy.max_wait,
        policy.linger_seconds,
    )


def log_not_loaded(app: Any, routed: Collection[Any]) -> None:
    """
    Log which batch tasks may come to this worker and find no model loaded.

    Args:
        app: The Celery app.
        routed: Its batch tasks that are routed to a queue of this worker.
    """
    queues = app.amqp.queues.consume_from
    if not routed and not routed_queues(app).intersection(queues):
        logger.warning(
            "-Q %s: no batch task is routed to what this worker consumes. One that is sent here"
            " by the name of the queue is batched, and its model is loaded by its first request,"
            " which waits for that; %s",
            ",".join(queues),
            _REMEDY,
        )
        return
    names = [task.name for task in batch_tasks(app) if task.model and task not in routed]
    if names:
        logger.info("Not loaded at the start, as other queues are theirs: %s", ", ".join(names))


def add_unrouted(consumer: Any, task_queue: TaskQueue, request: Any) -> None:
    """
    Add a request to its task queue, and prepare the worker for its task if it is the first.

    Args:
        consumer: Celery's consumer.
        task_queue: Of a task that was not served when this connection was made.
        request: Celery's request.
    """
    context = ConsumerContext.of(consumer)
    if task_queue.task not in context.worker.tasks:
        _serve(consumer, context, task_queue.task)
    context.scheduler.add(task_queue, request)


def _serve(consumer: Any, context: ConsumerContext, task: Any) -> None:
    worker = context.worker
    worker.tasks.append(task)
    context.validator.limit_all()
    prefetch.warn_about_limits(consumer.controller, prefetch.messages_per_process(worker.tasks))
    before, after = prefetch.adjust_prefetch(consumer, context.scheduler.policy)
    if after > before and consumer.connection.transport.driver_type == "amqp":
        consumer.call_soon(_apply_prefetch, consumer)
    log_policy(task)
    if task.model is not None:
        logger.warning(
            "%s comes to a queue that it was not routed to when this worker started: its model"
            " is loaded by this request, which waits for that; %s",
            task.name,
            _REMEDY,
        )
        if worker.warm_up is not None:
            worker.warm_up.add(task.name)
    try:
        worker.serve_metrics(list(consumer.app.amqp.queues.consume_from))
    except ConfigurationError as error:
        logger.error("No metrics: %s", error)  # noqa: TRY400 (its message says it all)


def _apply_prefetch(consumer: Any) -> None:
    """Have RabbitMQ use the new prefetch; a consumer with one of its own keeps it otherwise."""
    if consumer.task_consumer is not None and not consumer.qos_global:
        consumer.qos.update()
        consume_again(consumer.task_consumer)
