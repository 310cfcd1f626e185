"""How many messages a worker prefetches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

from celery.worker.state import reserved_requests

from celery_batch.batching.policy import BatchPolicy
from celery_batch.config import policy_of
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = [
    "adjust_prefetch",
    "limit_to_capacity",
    "messages_per_process",
    "override_disabled_prefetch",
    "set_prefetch",
    "warn_about_limits",
]

logger = logging.getLogger(__name__)


def messages_per_process(
    tasks: Iterable[Any], policy: Callable[[Any], BatchPolicy] = policy_of
) -> int:
    """
    Return how many messages of these tasks one pool process can use.

    One batch runs, one is ready and one is being formed; a message that is acknowledged when
    its batch starts no longer counts as prefetched.

    Args:
        tasks: Batch tasks.
        policy: Returns the policy of a task.
    """
    return sum(policy(task).max_batch_size * (3 if task.acks_late else 2) for task in tasks)


def set_prefetch(consumer: Any, per_process: int) -> tuple[int, int]:
    """
    Change the prefetch of a running consumer, from its next message on.

    Args:
        consumer: Celery's consumer; it prefetches at least what its user has set.
        per_process: How many messages one pool process can use.

    Returns:
        The prefetch before and after; 0 for no limit.
    """
    before: int = consumer.prefetch_multiplier
    if not before:  # Celery's value for no limit
        return 0, 0
    after: int = max(WorkerContext.of(consumer.controller).user_prefetch, per_process)
    processes: int = max(consumer.initial_prefetch_count // before, 1)
    consumer.prefetch_multiplier = consumer.controller.prefetch_multiplier = after
    consumer.initial_prefetch_count = processes * after
    if consumer.qos is not None:
        consumer.qos.increment_eventually(max(after - before, 0) * processes)
        consumer.qos.decrement_eventually(max(before - after, 0) * processes)
    return processes * before, processes * after


def adjust_prefetch(consumer: Any, scheduler: Scheduler) -> tuple[int, int]:
    """Set the prefetch to what the served tasks can use now; return it before and after."""
    tasks = WorkerContext.of(consumer.controller).tasks
    wanted = messages_per_process(tasks, lambda task: scheduler.task_queue(task).policy)
    return set_prefetch(consumer, wanted)


def warn_about_limits(worker: Any, per_process: int) -> None:
    """
    Log which settings of the user would keep batches below their size.

    Args:
        worker: Celery's worker, its prefetch multiplier as the user set it.
        per_process: How many messages one pool process can use.
    """
    limit, wanted = worker.app.conf.worker_eta_task_limit, per_process * worker.concurrency
    if limit is not None and limit < wanted:
        logger.warning(
            "worker_eta_task_limit=%s limits batches: this worker needs to hold %s messages;"
            " raise the limit to that, or lower max_batch_size",
            limit,
            wanted,
        )
    if worker.prefetch_multiplier == 0:
        logger.warning(
            "worker_prefetch_multiplier=0 lets this worker take all messages of a queue from"
            " the others; leave the setting out, batches then get the %s messages they need",
            wanted,
        )


def override_disabled_prefetch(consumer: Any, scheduler: Scheduler) -> None:
    """
    Fetch whole batches where ``--disable-prefetch`` would fetch one task per process.

    Celery then stops reading as soon as it holds one request per pool process.
    Requests that wait for a batch are held, so every batch would have one request.

    Args:
        consumer: Celery's consumer, its task consumer started.
        scheduler: Its scheduler.
    """
    conf = consumer.app.conf
    if not conf.worker_disable_prefetch or consumer.connection.transport.driver_type != "redis":
        return
    tasks = WorkerContext.of(consumer.controller).tasks

    def per_process() -> int:
        task_queues = map(scheduler.task_queue, tasks)
        return 2 * sum(each.policy.max_batch_size for each in task_queues)

    def can_consume(qos: Any) -> bool:
        most = per_process()
        if not most:  # no batch task has come yet
            return bool(celerys_own())
        processes = consumer.controller.max_concurrency or consumer.pool.num_processes
        return bool(len(reserved_requests) < processes * most and type(qos).can_consume(qos))

    qos = consumer.task_consumer.channel.qos
    celerys_own = qos.can_consume
    qos.can_consume = MethodType(can_consume, qos)
    if most := per_process():
        logger.warning(
            "worker_disable_prefetch would limit batches to the pool's size;"
            " this worker holds up to %s messages per pool process instead",
            most,
        )


def limit_to_capacity(consumer: Any, scheduler: Scheduler) -> None:
    """
    Leave messages in the broker while some task has all it can use; on Redis only.

    The prefetch is wide enough for all batch tasks of the worker at once; without
    this, one busy task would fill it.

    Args:
        consumer: Celery's consumer, its task consumer started.
        scheduler: Its scheduler.
    """
    if consumer.connection.transport.driver_type != "redis":
        return
    qos = consumer.task_consumer.channel.qos
    within_prefetch = qos.can_consume
    qos.can_consume = lambda: bool(within_prefetch() and scheduler.fetch_limits.has_capacity())
