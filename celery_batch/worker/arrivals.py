"""Requests as they come in: who is new, who has been here before, who goes alone."""

from __future__ import annotations

from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.worker.state import task_ready

from celery_batch.worker.job import BatchJob
from celery_batch.worker.lane import Lane
from celery_batch.worker.returns import Known, Returns

__all__ = ["Arrivals"]


class Arrivals:
    """
    The door of the lanes.

    Args:
        consumer: Celery's consumer.
        returns: What is remembered of messages that were given back.
    """

    def __init__(self, consumer: Any, returns: Returns) -> None:
        self._consumer = consumer
        self._returns = returns

    def admit(self, lane: Lane, request: Any) -> bool:
        """
        Put a request in its lane, unless it runs here already or has been answered.

        Args:
            lane: Of its task.
            request: Celery's request.

        Returns:
            Whether it is in line now.
        """
        known = self._returns.recognise(request)
        if known is Known.ANSWERED and request.has_result:
            task_ready(request)
            request.acknowledge()
            return False
        if isinstance(known, BatchJob) and known.adopt(request):
            if known.accepted:
                self._consumer.batch_ledger.started([request])
            return False
        alone = known is None and self._is_suspect(request)
        if lane.kept is not None:
            lane.kept.add(request, alone=alone)
            return False
        self.line_up(lane, request, alone=alone)
        return True

    def line_up(self, lane: Lane, request: Any, *, alone: bool = False) -> None:
        """
        Put a request in its lane, at the place that it has a right to.

        Args:
            lane: Of its task.
            request: Celery's request.
            alone: It is a suspect, also if it has not been lost yet.
        """
        alone = alone or request.losses > 0 or request.deadline is not None
        lane.add(request, urgency=self._urgency(request), alone=alone)

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
