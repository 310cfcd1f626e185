"""Recognises redelivered requests, and runs suspected ones alone.

Brokers deliver again what they have not heard to be done with: after a lost
connection, and after a crash of their own also what was acknowledged just
before.  What runs here is not run a second time; what has been answered is only
acknowledged; and what had not been started is no suspect.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.worker.state import task_ready

from celery_batch.worker.dispatch.job import BatchJob
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = [
    "Known",
    "RedeliveryCache",
    "RequestReceiver",
]


#: Enough for everything a worker can hold; older ones have long come back, or went elsewhere.
_LONGEST_MEMORY = 10_000


class Known(Enum):
    """What is known of a message that came again, beside the job that runs it."""

    ANSWERED = auto()
    NEVER_RAN = auto()


class RedeliveryCache:
    """The fate of each request whose message may come again."""

    def __init__(self) -> None:
        self._fates: OrderedDict[tuple[str, int], Known | BatchJob] = OrderedDict()
        self._losses: dict[tuple[str, int], int] = {}
        self._lock = threading.RLock()  # jobs end on threads, and in signal handlers

    def __len__(self) -> int:
        return len(self._fates)

    def never_ran(self, requests: Iterable[Any]) -> None:
        """Take note of requests that are given back without having run since."""
        with self._lock:
            for request in requests:
                self._keep(request.key, Known.NEVER_RAN)
                if request.losses:
                    self._losses[request.key] = request.losses

    def still_run(self, job: BatchJob) -> None:
        """Take note of requests that run on while their messages go back."""
        with self._lock:
            for request in job.requests:
                self._keep(request.key, job)

    def ended(self, request: Any) -> None:
        """
        Take note that a request has heard how it ended.

        Args:
            request: Celery's request; one that was rejected may be meant to come again.
        """
        with self._lock:
            self._keep(request.key, Known.NEVER_RAN if request.was_rejected else Known.ANSWERED)

    def all_answered(self, requests: Iterable[Any]) -> None:
        """Take note of requests whose results are stored and whose messages are acknowledged."""
        with self._lock:
            for request in requests:
                self._keep(request.key, Known.ANSWERED)

    def recognise(self, request: Any) -> Known | BatchJob | None:
        """
        Return what is known of a request whose message was delivered again, once.

        Args:
            request: Celery's request; its count of losses is filled in.
        """
        if not request.is_redelivered:
            return None
        with self._lock:
            request.losses = max(request.losses, self._losses.pop(request.key, 0))
            follow_up = self._fates.pop(request.key, None)
        if isinstance(follow_up, BatchJob) and follow_up.has_ended:
            return None  # stopped before it had an answer, or just about to be told
        return follow_up

    def _keep(self, key: tuple[str, int], follow_up: Known | BatchJob) -> None:
        self._fates.pop(key, None)
        self._fates[key] = follow_up  # behind all others
        while len(self._fates) > _LONGEST_MEMORY:
            old, _ = self._fates.popitem(last=False)
            self._losses.pop(old, None)


class RequestReceiver:
    """
    The door of the lanes.

    Args:
        consumer: Celery's consumer.
        redelivery: What is remembered of messages that were given back.
        on_running: Called with requests whose new messages belong to a job that runs.
    """

    def __init__(
        self,
        consumer: Any,
        redelivery: RedeliveryCache,
        on_running: Callable[[list[Any]], None],
    ) -> None:
        self._consumer = consumer
        self._redelivery = redelivery
        self._on_running = on_running

    def admit(self, task_queue: TaskQueue, request: Any) -> bool:
        """
        Put a request in its lane, unless it runs here already or has been answered.

        Args:
            task_queue: Of its task.
            request: Celery's request.

        Returns:
            Whether it is in line now.
        """
        known = self._redelivery.recognise(request)
        if known is Known.ANSWERED and request.has_result:
            task_ready(request)
            request.acknowledge()
            return False
        if isinstance(known, BatchJob) and known.adopt(request):
            if known.accepted:
                self._on_running([request])
            return False
        alone = known is None and self._is_suspect(request)
        if task_queue.kept is not None:
            task_queue.kept.add(request, alone=alone)
            return False
        self.line_up(task_queue, request, alone=alone)
        return True

    def line_up(self, task_queue: TaskQueue, request: Any, *, alone: bool = False) -> None:
        """
        Put a request in its lane, at the place that it has a right to.

        Args:
            task_queue: Of its task.
            request: Celery's request.
            alone: It is a suspect, also if it has not been lost yet.
        """
        alone = alone or request.losses > 0 or request.deadline is not None
        task_queue.add(request, urgency=self._urgency(request), alone=alone)

    def _urgency(self, request: Any) -> int:
        """Return what a request's priority means: 9 comes first on AMQP, 0 on Redis."""
        priority = (request.delivery_info or {}).get("priority")
        if not priority or not isinstance(priority, int):
            return 0
        match self._transport:
            case "amqp":
                return -priority
            case "redis":
                return priority
        return 0

    @property
    def _transport(self) -> str:
        return str(self._consumer.connection.transport.driver_type)

    def _is_suspect(self, request: Any) -> bool:
        """
        Say whether its last holder may have died of a request.

        On Redis that is counted in the message, wherever it was held.  Elsewhere a
        worker with pool processes outlives them, and knows what they died of; if it
        went down all the same, it was hardly for one item's sake, unless it happens
        again and again.
        """
        if not request.is_redelivered or self._transport == "redis":
            return False
        return not isinstance(self._consumer.pool, PreforkPool) or request.deliveries > 1
