"""
Waiting requests whose batches are limited by cost, in the order in which they run.

Rule 1: the most urgent requests go first. The room that they leave in a batch is filled with
        requests of the next urgency, and so on, that fit and are no longer; with longer ones
        only where more than half of the batch would stay empty. Once it is known what a call
        costs beside its rows, those whose padding costs more wait for a call of their own.
Rule 2: among requests of the same urgency a batch is chosen by length (``length_queue.py``).
Rule 3: overtaken requests earn a guaranteed share of each batch, in whole batches, because
        requests of unlike lengths would pad each other: once they have earned one, it goes
        before the more urgent requests. What they get in the room of other batches is
        subtracted, if the one that has waited longest is among them: those that fit there would
        keep one that does not from ever leaving. Requests earn nothing while no other is more
        urgent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from celery_batch.batching.batch import Request
from celery_batch.batching.cost import CallCost, CostLimits, Load
from celery_batch.batching.length_queue import LengthQueue

__all__ = ["CostQueue"]

T = TypeVar("T")

#: The error of float arithmetic when shares of a batch are added up.
_TOLERANCE = 1e-6


class CostQueue(Generic[T]):
    """Requests by urgency, then by length; see `LengthQueue`."""

    def __init__(
        self, limits: CostLimits, sort_window: int, call_cost: CallCost | None = None
    ) -> None:
        self._limits, self._call_cost = limits, call_cost or CallCost()
        self._sort_window = sort_window
        self._queues: dict[int, LengthQueue[T]] = {}
        #: The part of a batch that overtaken requests have earned.
        self._earned = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def rows(self) -> int:
        """The rows of all waiting requests."""
        return sum(queue.rows for queue in self._queues.values())

    @property
    def earned_rows(self) -> float:
        """Rows that the requests of the next batch have earned, if no other is more urgent."""
        return self._earned * self._limits.rows if len(self._queues) == 1 else 0.0

    @property
    def oldest(self) -> float | None:
        """When the request arrived that has waited longest; None if none waits."""
        if len(self._queues) == 1:  # as nearly always
            (queue,) = self._queues.values()
            return queue.oldest.arrived
        return min((queue.oldest.arrived for queue in self._queues.values()), default=None)

    @property
    def urgency(self) -> int | None:
        """The most urgent request's; None if none waits."""
        if len(self._queues) == 1:  # as nearly always
            return next(iter(self._queues))
        return min(self._queues, default=None)

    def is_full(self, size: int) -> bool:
        """Return whether a batch waits that cannot grow."""
        queues = self._queues.values()
        if len(queues) == 1:  # as nearly always
            (queue,) = queues
            return queue.batch.is_full or queue.rows >= size
        if any(queue.batch.is_full for queue in queues) or self.rows >= size:
            return True
        return len(queues) > 1 and sum(queue.cost for queue in queues) >= self._limits.cost

    def has_whole_batch(self, size: int) -> bool:
        """Return whether the requests that wait are enough for a batch without padding."""
        if len(self._queues) == 1:  # as nearly always
            (queue,) = self._queues.values()
            return queue.rows >= size or queue.cost >= self._limits.cost
        work = sum(queue.cost for queue in self._queues.values())
        return self.rows >= size or work >= self._limits.cost

    @property
    def has_divided(self) -> bool:
        """Whether requests wait that may have been left out of a batch into which they fit."""
        return any(queue.may_divide for queue in self._queues.values())

    def limit(self, limits: CostLimits, sort_window: int) -> None:
        """Keep to other limits from the next batch on; the requests keep what they have earned."""
        self._limits, self._sort_window = limits, sort_window
        for queue in self._queues.values():
            queue.limit(limits, sort_window)

    def append(self, request: Request[T]) -> None:
        """Add a request behind those of its own urgency."""
        queue = self._queues.get(request.urgency)
        if queue is None:
            queue = LengthQueue(self._limits, self._sort_window, self._call_cost)
            self._queues[request.urgency] = queue
        queue.append(request)

    def before(self, urgency: int) -> tuple[int, int]:
        """Return how many requests would go before a new one of this urgency, and their rows."""
        queues = [queue for each, queue in self._queues.items() if each <= urgency]
        return sum(map(len, queues)), sum(queue.rows for queue in queues)

    def work_before(self, urgency: int) -> float:
        """Return what the requests cost that would go before a new one, if none is padded."""
        return sum(queue.cost for each, queue in self._queues.items() if each <= urgency)

    def rows_of(self, urgency: int) -> int:
        """Return how many rows the requests of exactly this urgency have."""
        queue = self._queues.get(urgency)
        return queue.rows if queue else 0

    def take(self, size: int, share: float = 0.0) -> list[Request[T]]:  # noqa: ARG002 (PriorityQueue's)
        """Remove and return the next batch, of which overtaken requests earn the part `share`."""
        first, *overtaken = sorted(self._queues)
        queue = self._queues[first]
        if not queue.may_divide and (self._fit_together() if overtaken else queue.is_one_batch):
            return self.clear()
        if len(queue) == 1 and not overtaken:
            return self.clear()
        if not overtaken:
            self._earned = 0.0
            taken = queue.take()
            self._forget_empty()
            return taken
        self._earned += share
        longest = min(overtaken, key=lambda each: self._queues[each].oldest.arrived)
        oldest = self._queues[longest].oldest
        leading = longest if self._earned >= 1 - _TOLERANCE else first
        taken = self._queues[leading].take()
        load = Load(self._limits)
        for request in taken:
            load.offer(request)
        for urgency in (first, *overtaken):
            if urgency != leading and not load.is_full:
                taken += self._queues[urgency].take_beside(load)
            if self._queues[urgency].may_divide and len(self._queues[urgency]):
                break  # these would have been in the batch, if they were not cheaper apart
        self._forget_empty()
        if any(request is oldest for request in taken):
            received = sum(request.rows for request in taken if request.urgency != first)
            self._earned = max(self._earned - received / load.rows, 0.0)
        if not any(urgency != first for urgency in self._queues):
            self._earned = 0.0
        taken.sort(key=lambda request: request.urgency)
        return taken

    def _forget_empty(self) -> None:
        self._queues = {each: queue for each, queue in self._queues.items() if len(queue)}

    def _fit_together(self) -> bool:
        """Return whether all requests fit into one batch, whatever their urgency."""
        waiting = [request for queue in self._queues.values() for request in queue]
        return len(Load(self._limits).take_from(waiting)) == len(waiting)

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some requests; the others keep their places and what they earned."""
        first = self.urgency
        removed = [
            request
            for _, queue in sorted(self._queues.items())
            for request in queue.remove(is_unwanted)
        ]
        self._forget_empty()
        if not any(urgency != first for urgency in self._queues):
            self._earned = 0.0
        return removed

    def clear(self) -> list[Request[T]]:
        """Remove and return all requests."""
        left = [request for urgency in sorted(self._queues) for request in self._queues[urgency]]
        self._queues.clear()
        self._earned = 0.0
        return left
