"""

Waiting requests, in the order in which they run.

Rule 1: the most urgent first; what they leave of a batch is filled with those of the
        next urgency, and so on, until somebody does not fit in.
Rule 2: whoever is overtaken is owed a share of each batch.  As soon as what is owed is
        enough for the one of them who waits longest, the batch has him before the more
        urgent.  What fills a batch anyway is taken off the debt, and beyond it nothing
        is saved up; who has nobody before him is owed nothing.
        Where a batch of theirs lies ready and is overtaken, that one is owed it, see
        ``Batcher.next``; and what one is made of takes along what it was owed here.
Rule 3: where the urgent would not fit in beside what is owed, it grows to a batch.
Rule 4: first come, first served, among those of one urgency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from celery_batch.batching.packing import portion
from celery_batch.batching.request import Request

__all__ = ["PriorityQueue"]

T = TypeVar("T")

#: What adding up parts of a row may cost in float arithmetic.
_TOLERANCE = 1e-6


class PriorityQueue(Generic[T]):
    """Requests by urgency, and by their arrival where that is equal."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Request[T]]] = {}
        self._length = 0
        #: Of all who wait.
        self.rows = 0
        #: Rows that are owed to those who were overtaken.
        self._guaranteed = 0.0

    @property
    def guaranteed(self) -> float:
        """Rows that those are owed who go next, where nobody is before them any more."""
        return self._guaranteed if len(self._queues) == 1 else 0.0

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

    def rows_of(self, urgency: int) -> int:
        """Return how many rows those have who are just so urgent."""
        return sum(request.rows for request in self._queues.get(urgency, ()))

    def take(self, size: int, share: float = 0.0) -> list[Request[T]]:
        """
        Remove and return the next requests, for a batch of this many rows at most.

        In one call of the model the more urgent are the first.

        Args:
            size: Most rows.
            share: How much of it is owed to those who are overtaken.
        """
        if len(self._queues) > 1:
            return self._take_of_several(size, share)
        self._guaranteed = 0.0
        if self.rows == self._length:  # as nearly always
            return self._take_singles(min(size, self._length))
        ((urgency, queue),) = self._queues.items()
        return self._pop(urgency, portion(size, (request.rows for request in queue)))

    def _take_singles(self, count: int) -> list[Request[T]]:
        ((urgency, queue),) = self._queues.items()
        self._length -= count
        self.rows -= count
        if not self._length:
            del self._queues[urgency]
            return list(queue)
        return [queue.popleft() for _ in range(count)]

    def _take_of_several(self, size: int, share: float) -> list[Request[T]]:
        first, *others = sorted(self._queues)
        others.sort(key=lambda urgency: self._queues[urgency][0].arrived)
        self._guaranteed += share * size
        if self._guaranteed > size - _TOLERANCE:
            taken = self._portion(others[0], size)
            taken += self._fill(others[1:], -_rows(taken) % size)
        else:
            beside = size - self._queues[first][0].rows
            taken = self._fill(others[:1], min(int(self._guaranteed + _TOLERANCE), beside))
            taken = taken or self._portion(first, size)
        taken += self._fill(sorted(self._queues), -_rows(taken) % size)
        paid = _rows(request for request in taken if request.urgency != first)
        is_anybody_left = any(urgency != first for urgency in self._queues)
        self._guaranteed = max(self._guaranteed - paid, 0.0) if is_anybody_left else 0.0
        if _rows(taken) <= size:
            taken.sort(key=lambda request: request.urgency)
        return taken

    def _portion(self, urgency: int, size: int) -> list[Request[T]]:
        rows = (request.rows for request in self._queues[urgency])
        return self._pop(urgency, portion(size, rows))

    def _fill(self, urgencies: Iterable[int], room: int) -> list[Request[T]]:
        """Remove and return who is next, of one urgency after the other, while they fit in."""
        taken: list[Request[T]] = []
        for urgency in urgencies:
            while urgency in self._queues:
                if self._queues[urgency][0].rows > room:
                    return taken
                taken += self._pop(urgency, 1)
                room -= taken[-1].rows
        return taken

    def _pop(self, urgency: int, count: int) -> list[Request[T]]:
        queue = self._queues[urgency]
        taken = [queue.popleft() for _ in range(count)]
        if not queue:
            del self._queues[urgency]
        self._length -= count
        self.rows -= _rows(taken)
        return taken

    def clear(self) -> list[Request[T]]:
        """Remove and return everybody."""
        everybody = list(self._in_order())
        self._queues.clear()
        self._length = self.rows = 0
        self._guaranteed = 0.0
        return everybody

    def _in_order(self) -> Iterator[Request[T]]:
        return chain.from_iterable(self._queues[urgency] for urgency in sorted(self._queues))


def _rows(requests: Iterable[Request[T]]) -> int:
    return sum(request.rows for request in requests)
