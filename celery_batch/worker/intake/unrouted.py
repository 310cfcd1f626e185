"""

Batch tasks that arrive on a queue that they are not routed to.

A call may name any queue, so any batch task of the app may come to any worker.  What is
routed to a worker's queues is prepared at its start: models are loaded, and the prefetch is
large enough for batches.  For every other task that is done when its first message comes: a
worker of ordinary tasks, of the same app, is not to load models that nobody wants from it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from celery_batch.config import milliseconds_warnings, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.scheduling import prefetch
from celery_batch.worker.scheduling.routing import batch_tasks, routed_queues
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["announce", "line_up", "say_what_is_cold"]

logger = logging.getLogger(__name__)

_WAY_OUT = "to have it loaded at the start, route the task here (task_routes)"


def announce(task: Any) -> None:
    """
    Say in the log when a task's batches leave.

    Args:
        task: The batch task.
    """
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


def say_what_is_cold(app: Any, routed: Collection[Any]) -> None:
    """
    Say which batch tasks may come to this worker and find no model loaded.

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
            _WAY_OUT,
        )
        return
    cold = [task.name for task in batch_tasks(app) if task.model and task not in routed]
    if cold:
        logger.info("Not loaded at the start, as other queues are theirs: %s", ", ".join(cold))


def line_up(consumer: Any, task_queue: TaskQueue, request: Any) -> None:
    """
    Put a request in its lane, and prepare this worker for its task if it is the first.

    Args:
        consumer: Celery's consumer.
        task_queue: Of a task that was not served when this connection was made.
        request: Celery's request.
    """
    context = ConsumerContext.of(consumer)
    if task_queue.task not in context.worker.tasks:
        _take_on(consumer, context, task_queue.task)
    context.scheduler.add(task_queue, request)


def _take_on(consumer: Any, context: ConsumerContext, task: Any) -> None:
    worker = context.worker
    worker.tasks.append(task)
    context.validator.limit_all()
    prefetch.warn_about_caps(consumer.controller, prefetch.held_per_process(worker.tasks))
    before, now = prefetch.hold_enough(consumer, context.scheduler)
    if now > before and consumer.connection.transport.driver_type == "amqp":
        consumer.call_soon(_consume_anew, consumer)
    announce(task)
    if task.model is not None:
        logger.warning(
            "%s comes to a queue that it was not routed to when this worker started: its model"
            " is loaded by this request, which waits for that; %s",
            task.name,
            _WAY_OUT,
        )
        if worker.warm_up is not None:
            worker.warm_up.add(task.name)
    try:
        worker.serve_metrics(list(consumer.app.amqp.queues.consume_from))
    except ConfigurationError as error:
        logger.error("No metrics: %s", error)  # noqa: TRY400 (its message says it all)


def _consume_anew(consumer: Any) -> None:
    """
    Have RabbitMQ take a new prefetch for queues that are consumed already.

    Where each consumer has a prefetch of its own, it keeps the one that it began with.
    """
    tasks = consumer.task_consumer
    if tasks is None or consumer.qos_global:
        return
    consumer.qos.update()
    tags = dict(tasks._active_tags)  # noqa: SLF001 (kombu knows one of each queue)
    tasks._active_tags.clear()  # noqa: SLF001
    tasks.consume()
    # Only now: a queue that deletes itself does so with its last consumer.
    for tag in tags.values():
        tasks.channel.basic_cancel(tag)
