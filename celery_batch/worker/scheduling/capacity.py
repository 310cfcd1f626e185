"""How many messages a worker process prefetches, and how many batches it runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import MethodType
from typing import Any

from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import QueueNotFound
from celery.worker import state
from celery.worker.state import reserved_requests

from celery_batch.batching.policy import BatchPolicy
from celery_batch.config import policy_of
from celery_batch.task import BatchTask

__all__ = [
    "Slots",
    "batch_tasks",
    "held_per_process",
    "hold",
    "hold_enough",
    "lift_disabled_prefetch",
    "queue_of",
    "read_what_is_useful",
    "routed_queues",
    "served_tasks",
    "warn_about_caps",
]


logger = logging.getLogger(__name__)


def batch_tasks(app: Any) -> list[Any]:
    """Return all batch tasks of an app: any of them may come to any queue, named at the call."""
    return [task for _, task in sorted(app.tasks.items()) if isinstance(task, BatchTask)]


def served_tasks(app: Any) -> list[Any]:
    """Return the batch tasks that are routed to a queue that this worker consumes."""
    queues = app.amqp.queues.consume_from
    return [task for task in batch_tasks(app) if queue_of(app, task) in queues]


def routed_queues(app: Any) -> set[str]:
    """Return the queues that an app's tasks are routed to, batch tasks and others."""
    found = set()
    for name, task in app.tasks.items():
        with suppress(QueueNotFound):  # who sends is told
            if not name.startswith("celery."):  # Celery's own, which few apps send
                found.add(queue_of(app, task))
    return found


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
    now: int = max(consumer.controller.batch_asked_prefetch, wanted)
    processes: int = max(consumer.initial_prefetch_count // before, 1)
    consumer.prefetch_multiplier = consumer.controller.prefetch_multiplier = now
    consumer.initial_prefetch_count = processes * now
    if consumer.qos is not None:
        consumer.qos.increment_eventually(max(now - before, 0) * processes)
        consumer.qos.decrement_eventually(max(before - now, 0) * processes)
    return processes * before, processes * now


def hold_enough(consumer: Any) -> tuple[int, int]:
    """
    Have a running consumer hold what the tasks that it serves can put to use now.

    Args:
        consumer: Celery's consumer, its lanes on it.

    Returns:
        As `hold`.
    """
    scheduler = consumer.batch_scheduler
    served = consumer.controller.batch_tasks
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


def lift_disabled_prefetch(consumer: Any) -> None:
    """
    Let whole batches through where ``--disable-prefetch`` would let one task through.

    Celery then stops reading as soon as it holds one request per pool process.
    Requests that gather for a batch are held, so every batch would be of one.

    Args:
        consumer: Celery's consumer, its task consumer started.
    """
    conf = consumer.app.conf
    if not conf.worker_disable_prefetch or consumer.connection.transport.driver_type != "redis":
        return
    scheduler = consumer.batch_scheduler

    def per_process() -> int:
        served = map(scheduler.task_queue, consumer.controller.batch_tasks)
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


def read_what_is_useful(consumer: Any) -> None:
    """
    Leave messages in the broker while some lane has all it can use, where we can count.

    The prefetch has to be wide enough for all batch tasks of the worker at once; without
    this, one that is busy would fill the whole of it.

    Args:
        consumer: Celery's consumer, its task consumer started.
    """
    if consumer.connection.transport.driver_type != "redis":
        return
    qos, scheduler = consumer.task_consumer.channel.qos, consumer.batch_scheduler
    within_prefetch = qos.can_consume

    def can_consume() -> bool:
        return bool(within_prefetch() and scheduler.has_room())

    qos.can_consume = can_consume


def queue_of(app: Any, task: Any) -> str:
    """
    Return the name of the queue that a task's messages go to.

    Args:
        app: The Celery app.
        task: The task.
    """
    options = {"queue": task.queue} if getattr(task, "queue", None) else {}
    route = app.amqp.router.route(options, task.name)
    queue = route.get("queue", app.conf.task_default_queue)
    return str(getattr(queue, "name", queue))


class Slots:
    """
    The model slots of one worker: one per pool process, and one batch ready behind each.

    While a batch runs, the next one waits formed, so that the device need not
    wait for it to be gathered.

    Args:
        pool: Celery's pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        #: Whether a batch runs inside the very call that submits it.
        self.run_inline = isinstance(pool, SoloPool)
        self._depth = 1 if self.run_inline else 2
        self.in_flight = 0
        #: Guards `in_flight` and every decision that rests on it.
        self.lock = threading.RLock()  # a signal's handler may hear of an end

    @property
    def are_flushed(self) -> bool:
        """Whether a lost connection empties the pool of what no process has accepted."""
        flush = getattr(self._pool, "flush", None)  # the prefork pool has one once it runs
        return bool(flush) and getattr(flush, "__func__", None) is not BasePool.flush

    @property
    def processes(self) -> int:
        """How many batches can run at once; it changes with autoscale."""
        return max(int(self._pool.num_processes or 1), 1)

    @property
    def model_processes(self) -> int:
        """How many processes have models: on other pools than prefork it is this one alone."""
        return self.processes if isinstance(self._pool, PreforkPool) else 1

    @property
    def pids(self) -> set[int]:
        """Of those processes; one that is just being replaced may be missing."""
        if not isinstance(self._pool, PreforkPool):
            return {os.getpid()}
        started = getattr(self._pool, "_pool", None)  # billiard's, which has no public list
        return {each.pid for each in list(getattr(started, "_pool", None) or ())}

    @property
    def free(self) -> bool:
        """Whether a batch submitted now would run at once."""
        return self.in_flight < self.processes

    @property
    def capacity(self) -> int:
        """How many batches may be on their way: running, and ready behind those."""
        return self.processes * self._depth

    @property
    def room_ahead(self) -> bool:
        """Whether one more batch may be made ready behind the running ones."""
        return self.in_flight < self.capacity

    def recycle(self, pid: int | None, why: str) -> None:
        """
        End a process that is of no more use; the pool puts another in its place.

        A worker that runs models in its own process stops, for its supervisor to
        restart it; what it holds goes back to the broker.

        Args:
            pid: The process.
            why: What is wrong with it.
        """
        if pid == os.getpid():
            logger.critical("This worker can use its device no more and stops: %s", why)
            state.should_stop = os.EX_SOFTWARE
        elif pid is not None:
            logger.error("Process %d can use its device no more and is replaced: %s", pid, why)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # its exit handlers would want the device

    def kill(self, pids: set[int]) -> None:
        """
        End processes of the pool at once.

        Args:
            pids: Which; this worker's own main process is left alone.
        """
        for pid in (pids & self.pids) - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
