"""Who waits, in the order in which they will go."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from celery_batch.batching.request import Request

__all__ = ["Line"]

T = TypeVar("T")


class Line(Generic[T]):
    """Requests by urgency, and by their arrival where that is equal."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Request[T]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def oldest(self) -> float | None:
        """When the one who waits longest arrived; None if nobody waits."""
        return min((queue[0].arrived for queue in self._queues.values()), default=None)

    def append(self, request: Request[T]) -> None:
        """Put a request behind those of its own urgency."""
        queue = self._queues.get(request.urgency)
        if queue is None:
            queue = self._queues[request.urgency] = deque()
        queue.append(request)
        self._length += 1

    def take(self, size: int) -> list[Request[T]]:
        """Remove and return the next requests, this many at most."""
        taken: list[Request[T]] = []
        for urgency in sorted(self._queues):
            queue = self._queues[urgency]
            while queue and len(taken) < size:
                taken.append(queue.popleft())
            if not queue:
                del self._queues[urgency]
        self._length -= len(taken)
        return taken
