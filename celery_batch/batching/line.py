"""Who waits, in the order in which they will go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

from celery_batch.batching.portion import portion
from celery_batch.batching.request import Request

__all__ = ["Line"]

T = TypeVar("T")


class Line(Generic[T]):
    """Requests by urgency, and by their arrival where that is equal."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Request[T]]] = {}
        self._length = 0
        #: Of all who wait.
        self.rows = 0

    def __len__(self) -> int:
        return self._length

    @property
    def oldest(self) -> float | None:
        """When the one who waits longest arrived; None if nobody waits."""
        return min((queue[0].arrived for queue in self._queues.values()), default=None)

    @property
    def urgency(self) -> int | None:
        """Of the most urgent; None if nobody waits."""
        return min(self._queues, default=None)

    def append(self, request: Request[T]) -> None:
        """Put a request behind those of its own urgency."""
        queue = self._queues.get(request.urgency)
        if queue is None:
            queue = self._queues[request.urgency] = deque()
        queue.append(request)
        self._length += 1
        self.rows += request.rows

    def before(self, urgency: int) -> tuple[int, int]:
        """Return behind how many requests a newcomer of this urgency would wait, and their rows."""
        if urgency >= max(self._queues, default=urgency):
            return self._length, self.rows
        queues = [queue for each, queue in self._queues.items() if each <= urgency]
        return sum(map(len, queues)), sum(request.rows for queue in queues for request in queue)

    def take(self, size: int) -> list[Request[T]]:
        """Remove and return the next requests, for a batch of this many rows at most."""
        if self.rows == self._length and len(self._queues) == 1:  # as nearly always
            return self._take_singles(min(size, self._length))
        count = portion(size, (request.rows for request in self._in_order()))
        taken = list(islice(self._in_order(), count))
        for request in taken:
            queue = self._queues[request.urgency]
            queue.popleft()
            if not queue:
                del self._queues[request.urgency]
        self._length -= count
        self.rows -= sum(request.rows for request in taken)
        return taken

    def _take_singles(self, count: int) -> list[Request[T]]:
        ((urgency, queue),) = self._queues.items()
        self._length -= count
        self.rows -= count
        if not self._length:
            del self._queues[urgency]
            return list(queue)
        return [queue.popleft() for _ in range(count)]

    def clear(self) -> list[Request[T]]:
        """Remove and return everybody."""
        everybody = list(self._in_order())
        self._queues.clear()
        self._length = self.rows = 0
        return everybody

    def _in_order(self) -> Iterator[Request[T]]:
        return chain.from_iterable(self._queues[urgency] for urgency in sorted(self._queues))
