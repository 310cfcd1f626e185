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
    "held_per_process",
    "hold",
    "hold_enough",
    "lift_disabled_prefetch",
    "read_what_is_useful",
    "warn_about_caps",
]


logger = logging.getLogger(__name__)


def held_per_process(tasks: Iterable[Any], policy: Callable[[Any], BatchPolicy] = policy_of) -> int:
    """
    Return how many messages of these tasks one pool process can put to use.

    A batch is running, one is ready and one is gathering; a message that is
    acknowledged when its batch starts no longer counts as held.

    Args:
        tasks: Batch tasks.
        policy: Says of a task when its batches leave.
    """
    return sum(policy(task).max_batch_size * (3 if task.acks_late else 2) for task in tasks)


def hold(consumer: Any, wanted: int) -> tuple[int, int]:
    """
    Have a running consumer hold another number of messages, from its next message on.

    Args:
        consumer: Celery's consumer; what its user has asked for is held in any case.
        wanted: What one pool process can put to use.

    Returns:
        How many messages it held at most, and how many it holds now; 0 for any number.
    """
    before: int = consumer.prefetch_multiplier
    if not before:  # 0 is Celery's word for no limit
        return 0, 0
    now: int = max(WorkerContext.of(consumer.controller).user_prefetch, wanted)
    processes: int = max(consumer.initial_prefetch_count // before, 1)
    consumer.prefetch_multiplier = consumer.controller.prefetch_multiplier = now
    consumer.initial_prefetch_count = processes * now
    if consumer.qos is not None:
        consumer.qos.increment_eventually(max(now - before, 0) * processes)
        consumer.qos.decrement_eventually(max(before - now, 0) * processes)
    return processes * before, processes * now


def hold_enough(consumer: Any, scheduler: Scheduler) -> tuple[int, int]:
    """
    Have a running consumer hold what the tasks that it serves can put to use now.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.

    Returns:
        As `hold`.
    """
    served = WorkerContext.of(consumer.controller).tasks
    return hold(consumer, held_per_process(served, lambda task: scheduler.task_queue(task).policy))


def warn_about_caps(worker: Any, wanted: int) -> None:
    """
    Say loudly which setting would keep batches below their size.

    Args:
        worker: Celery's worker, its prefetch multiplier as the user set it.
        wanted: What one pool process can put to use.
    """
    limit = worker.app.conf.worker_eta_task_limit
    if limit is not None and limit < wanted * worker.concurrency:
        logger.warning(
            "worker_eta_task_limit=%s caps batches: this worker needs to hold %s messages;"
            " raise the limit to that, or lower max_batch_size",
            limit,
            wanted * worker.concurrency,
        )
    if worker.prefetch_multiplier == 0:
        logger.warning(
            "worker_prefetch_multiplier=0 lets this worker take the whole queue away from"
            " the others; leave the setting out, batches then get the %s messages they need",
            wanted * worker.concurrency,
        )


def lift_disabled_prefetch(consumer: Any, scheduler: Scheduler) -> None:
    """
    Let whole batches through where ``--disable-prefetch`` would let one task through.

    Celery then stops reading as soon as it holds one request per pool process.
    Requests that gather for a batch are held, so every batch would be of one.

    Args:
        consumer: Celery's consumer, its task consumer started.
        scheduler: Its scheduler.
    """
    conf = consumer.app.conf
    if not conf.worker_disable_prefetch or consumer.connection.transport.driver_type != "redis":
        return
    tasks = WorkerContext.of(consumer.controller).tasks

    def per_process() -> int:
        served = map(scheduler.task_queue, tasks)
        return 2 * sum(int(task_queue.policy.max_batch_size) for task_queue in served)

    def can_consume(qos: Any) -> bool:
        most = per_process()
        if not most:  # no batch task has come yet
            return bool(celerys_own())
        processes = consumer.controller.max_concurrency or consumer.pool.num_processes
        return bool(len(reserved_requests) < processes * most and type(qos).can_consume(qos))

    qos = consumer.task_consumer.channel.qos
    celerys_own = qos.can_consume
    qos.can_consume = MethodType(can_consume, qos)
    if per_process():
        logger.warning(
            "worker_disable_prefetch would cap batches at the pool's size;"
            " this worker holds up to %s messages per pool process instead",
            per_process(),
        )


def read_what_is_useful(consumer: Any, scheduler: Scheduler) -> None:
    """
    Leave messages in the broker while some lane has all it can use, where we can count.

    The prefetch has to be wide enough for all batch tasks of the worker at once; without
    this, one that is busy would fill the whole of it.

    Args:
        consumer: Celery's consumer, its task consumer started.
        scheduler: Its scheduler.
    """
    if consumer.connection.transport.driver_type != "redis":
        return
    qos = consumer.task_consumer.channel.qos
    within_prefetch = qos.can_consume

    def can_consume() -> bool:
        return bool(within_prefetch() and scheduler.fetch_limits.has_capacity())

    qos.can_consume = can_consume
