"""How many messages a worker prefetches, and how many more it can use at the moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from math import ceil
from types import MethodType
from typing import Any

from celery.worker.state import reserved_requests

from celery_batch.batching.batch import LEAST_URGENT
from celery_batch.batching.policy import BatchPolicy
from celery_batch.broker_depth import driver_of
from celery_batch.compat.celery import has_global_qos
from celery_batch.compat.kombu import consume_again
from celery_batch.config import policy_of, prefetch_warnings, usual_messages
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.scheduling.slots import Slots
from celery_batch.worker.scheduling.task_queue import KEY_WINDOW, TaskQueue

__all__ = [
    "FetchLimits",
    "OrdinaryLimit",
    "adjust_prefetch",
    "limit_to_capacity",
    "messages_per_process",
    "override_disabled_prefetch",
    "warn_about_limits",
]

logger = logging.getLogger(__name__)

#: The limit where no task queue sets one; the prefetch still does.
_NO_LIMIT = 1 << 20


def messages_per_process(
    tasks: Iterable[Any], policy: Callable[[Any], BatchPolicy] = policy_of
) -> int:
    """Return how many messages of these tasks one pool process can use."""
    return sum(_messages(task, policy(task)) for task in tasks)


def _messages(task: Any, policy: BatchPolicy) -> int:
    messages = usual_messages(task, policy)
    if task._item_key is not None and driver_of(task.app) == "redis":
        # Only a bound: there no more is read than there are keys for.
        messages += KEY_WINDOW * policy.usual_rows
    return messages


def adjust_prefetch(consumer: Any, policy: Callable[[Any], BatchPolicy]) -> None:
    """Set a consumer's prefetch to what its tasks can use."""
    before: int = consumer.prefetch_multiplier
    if not before:  # Celery's value for no limit
        return
    context = WorkerContext.of(consumer.controller)
    after: int = max(context.user_prefetch, messages_per_process(context.tasks, policy))
    processes: int = max(consumer.initial_prefetch_count // before, 1)
    consumer.prefetch_multiplier = consumer.controller.prefetch_multiplier = after
    consumer.initial_prefetch_count = processes * after
    if consumer.qos is not None:
        consumer.qos.increment_eventually(max(after - before, 0) * processes)
        consumer.qos.decrement_eventually(max(before - after, 0) * processes)
    if after > before and consumer.connection.transport.driver_type == "amqp":
        consumer.call_soon(_apply_prefetch, consumer)


def _apply_prefetch(consumer: Any) -> None:
    """Have RabbitMQ use the new prefetch; a consumer with one of its own keeps it otherwise."""
    if consumer.task_consumer is not None and not has_global_qos(consumer):
        consumer.qos.update()
        consume_again(consumer.task_consumer)


def warn_about_limits(worker: Any, per_process: int) -> None:
    """Log which settings of the user would keep batches below their size."""
    wanted = per_process * worker.concurrency
    for text in prefetch_warnings(worker.app, worker.prefetch_multiplier, wanted):
        logger.warning("%s", text)


def override_disabled_prefetch(consumer: Any, policy: Callable[[Any], BatchPolicy]) -> None:
    """Fetch whole batches where ``--disable-prefetch`` would fetch one task per process."""
    conf = consumer.app.conf
    is_disabled = conf.get("worker_disable_prefetch")  # a setting since 5.6
    if not is_disabled or consumer.connection.transport.driver_type != "redis":
        return
    tasks = WorkerContext.of(consumer.controller).tasks

    def per_process() -> int:
        return 2 * sum(policy(task).usual_rows for task in tasks)

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


def limit_to_capacity(consumer: Any, limits: FetchLimits) -> None:
    """Leave messages in the broker while some task has all it can use; on Redis only."""
    if consumer.connection.transport.driver_type != "redis":
        return
    qos = consumer.task_consumer.channel.qos
    within_prefetch = qos.can_consume
    qos.can_consume = lambda: bool(within_prefetch() and limits.has_capacity())


class FetchLimits:
    """How many more messages the task queues of one worker can use."""

    # `tasks` are the names of those that a broker queue may bring, or None if it may bring any; a
    # smaller urgency goes first; `credit` is what is left of the prefetch.

    def __init__(self, task_queues: Mapping[str, TaskQueue], slots: Slots) -> None:
        self._task_queues = task_queues
        self._slots = slots

    def has_capacity(self) -> bool:
        """Return whether each task can use another message, of whatever urgency."""
        return self._capacity_left(list(self._task_queues.values()), (), LEAST_URGENT) > 0

    def usable(
        self,
        tasks: Collection[str] | None,
        urgencies: Sequence[int],
        credit: int = _NO_LIMIT,
        ahead: int = 0,
    ) -> list[int]:
        """Return how many more messages of each urgency are of use; `ahead` wait beyond these."""
        # The task of the next message is unknown, so the fullest task queue sets the limit.
        task_queues, most_urgent = self._queues_of(tasks), min(urgencies)
        if not any(each.behind(most_urgent) for each in task_queues):
            # They would overtake no request, so the limit is the same for all of them.
            left = self._capacity_left(task_queues, tasks, most_urgent, ahead)
            return [min(left, credit)] * len(urgencies)
        usable = []
        for urgency in urgencies:
            left = self._capacity_left(task_queues, tasks, urgency, ahead)
            if left > credit:  # those that overtake requests are read beyond the prefetch
                overtaken = sum(each.behind(urgency) for each in task_queues) if tasks else 0
                left = min(left, credit + overtaken)
            usable.append(left)
        return usable

    def _capacity_left(
        self,
        task_queues: Collection[TaskQueue],
        tasks: Collection[str] | None,
        urgency: int,
        ahead: int = 0,
    ) -> int:
        batches, jobs = self._slots.capacity + self._slots.processes, list(self._slots.jobs)
        left = [
            each.capacity_left(
                batches, [job for job in jobs if job.task is each.task], urgency, ahead
            )
            for each in task_queues
        ]
        if tasks is None:
            left = [number for number in left if number > 0]
        return max(min(left, default=_NO_LIMIT), 0)

    def guaranteed(
        self, tasks: Collection[str] | None, urgencies: Sequence[int], credit: int = _NO_LIMIT
    ) -> list[int]:
        """Return how many rows of each urgency to fetch first: their low-priority share."""
        task_queues = self._queues_of(tasks)
        waiting = [each for each in task_queues if not each.is_empty]
        most_urgent = min(
            [each.urgency for each in waiting] + [job.urgency for job in list(self._slots.jobs)],
            default=LEAST_URGENT,
        )
        if most_urgent >= max(urgencies):
            return [0] * len(urgencies)
        policies = [each.policy for each in task_queues]
        share = ceil(2 * max(each.low_priority_share * each.usual_rows for each in policies))
        most = _NO_LIMIT if tasks else credit
        return [
            min(max(share - sum(each.rows_of(urgency) for each in waiting), 0), most)
            if most_urgent < urgency
            else 0
            for urgency in urgencies
        ]

    def _queues_of(self, tasks: Collection[str] | None) -> list[TaskQueue]:
        task_queues = list(self._task_queues.items())
        return [each for name, each in task_queues if tasks is None or name in tasks]


class OrdinaryLimit:
    """How many messages of ordinary tasks one connection may hold: as many as its user has set."""

    # The worker's prefetch is as wide as its batches need.  As in Celery, a message counts until it
    # is acknowledged, and one with an ETA from then on.

    def __init__(self, consumer: Any, batch_tasks: Container[str]) -> None:
        self._consumer = consumer
        self._context = WorkerContext.of(consumer.controller)
        self._batch_tasks = batch_tasks
        self._is_prefetch_disabled = bool(consumer.app.conf.get("worker_disable_prefetch"))
        #: The delivery tags of those that count, and of those with an ETA to come.
        self._held: set[str] = set()
        self._scheduled: set[str] = set()

    def add(self, tag: str, headers: Mapping[str, Any]) -> None:
        """Count a message that has come, unless it is a batch task's."""
        task = headers.get("task")
        if isinstance(task, str) and task not in self._batch_tasks:
            (self._scheduled if headers.get("eta") else self._held).add(tag)

    def eta_has_come(self, tag: str) -> None:
        """Count a message whose ETA has come."""
        if tag in self._scheduled:
            self._scheduled.discard(tag)
            self._held.add(tag)

    def discard(self, tag: str) -> None:
        """Count a message no more; it need not have been counted."""
        self._held.discard(tag)
        self._scheduled.discard(tag)

    def left(self) -> int | None:
        """Return how many more may be held; None for any number."""
        consumer, context = self._consumer, self._context
        if not context.tasks:  # the prefetch is the user's own
            return None
        limits: list[int] = []
        if context.user_prefetch:
            processes: int = consumer.initial_prefetch_count // consumer.prefetch_multiplier
            limits.append(max(processes, 1) * context.user_prefetch - len(self._held))
        if self._is_prefetch_disabled:  # Celery reserves none that waits for its rate limit
            most: int = consumer.controller.max_concurrency or consumer.pool.num_processes
            limits.append(most - self._reserved())
        return max(min(limits), 0) if limits else None

    def _reserved(self) -> int:
        """Return what ``--disable-prefetch`` counts: running ones, too, however acknowledged."""
        # A copy: some pools end tasks on other threads.
        requests = [each() for each in list(reserved_requests.data)]
        return sum(
            request is not None and request.name not in self._batch_tasks for request in requests
        )
