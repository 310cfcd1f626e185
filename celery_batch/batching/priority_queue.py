"""
Waiting requests, in the order in which they run.

Rule 1: the most urgent requests go first. The room that they leave in a batch is filled with
        requests of the next urgency, and so on, until one does not fit.
Rule 2: overtaken requests earn a guaranteed share of each batch. Once the earned rows are
        enough for the overtaken request that has waited longest, it goes before the more
        urgent ones. Rows that overtaken requests get in a batch anyway are subtracted, and
        nothing is saved beyond that. Requests earn nothing while no other is more urgent.
        If an overtaken batch is ready, it earns in place of the waiting requests (see
        ``Batcher.next``); a batch keeps what its requests had earned here.
Rule 3: where the urgent requests would not fit beside the earned rows, these add up until
        they make a whole batch.
Rule 4: requests of the same urgency go first come, first served.
Rule 5: a batch takes requests from the front of the queue, in their order, until it has
        ``max_batch_size`` rows. The first that does not fit stays, and so do all behind it:
        a smaller request never overtakes a larger one.
Rule 6: a request with more rows than a batch starts a batch of its own, which runs in
        several model calls; requests that came before it do not wait for these.
Rule 7: a request that does not fit into the rest of a batch joins it all the same, and the
        batch runs in two model calls, if these take more requests than two batches would.
Rule 8: the last model call is filled with the requests that come next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, TypeVar

from celery_batch.batching.batch import Request

__all__ = ["PriorityQueue"]

T = TypeVar("T")

#: The error of float arithmetic when parts of a row are added up.
_TOLERANCE = 1e-6


class PriorityQueue(Generic[T]):
    """Requests by urgency, then by arrival."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Request[T]]] = {}
        self._length = 0
        #: The rows of all waiting requests.
        self.rows = 0
        #: Rows that overtaken requests have earned.
        self._earned_rows = 0.0

    @property
    def earned_rows(self) -> float:
        """Rows that the requests of the next batch have earned, if no other is more urgent."""
        return self._earned_rows if len(self._queues) == 1 else 0.0

    def __len__(self) -> int:
        return self._length

    @property
    def oldest(self) -> float | None:
        """When the request arrived that has waited longest; None if none waits."""
        if len(self._queues) == 1:  # as nearly always
            (queue,) = self._queues.values()
            return queue[0].arrived
        return min((queue[0].arrived for queue in self._queues.values()), default=None)

    @property
    def urgency(self) -> int | None:
        """The most urgent request's; None if none waits."""
        if len(self._queues) == 1:  # as nearly always
            return next(iter(self._queues))
        return min(self._queues, default=None)

    def is_full(self, size: int) -> bool:
        """Return whether a batch of this many rows waits."""
        return self.rows >= size

    has_whole_batch = is_full

    def append(self, request: Request[T]) -> None:
        """Put a request behind those of its own urgency."""
        queue = self._queues.get(request.urgency)
        if queue is None:
            queue = self._queues[request.urgency] = deque()
        queue.append(request)
        self._length += 1
        self.rows += request.rows

    def before(self, urgency: int) -> tuple[int, int]:
        """Return how many requests would go before a new one of this urgency, and their rows."""
        if urgency >= max(self._queues, default=urgency):
            return self._length, self.rows
        queues = [queue for each, queue in self._queues.items() if each <= urgency]
        return sum(map(len, queues)), sum(map(self._rows_in, queues))

    def work_before(self, urgency: int) -> float:
        """Return how many rows the requests have that would go before a new one."""
        return self.before(urgency)[1]

    def rows_of(self, urgency: int) -> int:
        """Return how many rows the requests of exactly this urgency have."""
        return self._rows_in(self._queues.get(urgency, ()))

    def _rows_in(self, queue: Collection[Request[T]]) -> int:
        """Return how many rows the requests of one urgency have; look at each only if it must."""
        if self.rows == self._length:  # one row each, as nearly always
            return len(queue)
        return self.rows if len(queue) == self._length else _rows(queue)

    def take(self, size: int, share: float = 0.0) -> list[Request[T]]:
        """Remove and return the next batch, of which overtaken requests earn the part `share`."""
        if len(self._queues) > 1:
            return self._take_mixed(size, share)
        self._earned_rows = 0.0
        (urgency,) = self._queues
        return self._pop_batch(urgency, size)

    def _take_mixed(self, size: int, share: float) -> list[Request[T]]:
        """Take a batch while requests of several urgencies wait."""
        first, *overtaken = sorted(self._queues)
        overtaken.sort(key=lambda urgency: self._queues[urgency][0].arrived)
        self._earned_rows += share * size
        oldest = self._queues[overtaken[0]][0]
        if self._earned_rows > size - _TOLERANCE:
            taken = self._pop_batch(overtaken[0], size)
            taken += self._fill(overtaken[1:], -_rows(taken) % size)
        else:
            beside = size - self._queues[first][0].rows
            taken = self._fill(overtaken[:1], min(int(self._earned_rows + _TOLERANCE), beside))
            taken = taken or self._pop_batch(first, size)
        taken += self._fill(sorted(self._queues), -_rows(taken) % size)
        if any(request is oldest for request in taken):
            received = _rows(request for request in taken if request.urgency != first)
            self._earned_rows = max(self._earned_rows - received, 0.0)
        if not any(urgency != first for urgency in self._queues):
            self._earned_rows = 0.0
        if _rows(taken) <= size:
            taken.sort(key=lambda request: request.urgency)
        return taken

    def _pop_batch(self, urgency: int, size: int) -> list[Request[T]]:
        """Remove and return a batch of requests of one urgency."""
        queue = self._queues[urgency]
        if self.rows == self._length:  # one row each, as nearly always
            return self._pop(urgency, min(size, len(queue)))
        return self._pop(urgency, _pack(size, (request.rows for request in queue)))

    def _fill(self, urgencies: Iterable[int], room: int) -> list[Request[T]]:
        """Remove and return the next requests of each urgency in turn, while they fit."""
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
        if count == len(queue):
            taken = list(self._queues.pop(urgency))
        else:
            taken = [queue.popleft() for _ in range(count)]
        self.rows -= count if self.rows == self._length else _rows(taken)
        self._length -= count
        return taken

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some requests; the others keep their places and what they earned."""
        first, removed = self.urgency, list[Request[T]]()
        for urgency, queue in sorted(self._queues.items()):
            kept: deque[Request[T]] = deque()
            for request in queue:
                (removed if is_unwanted(request) else kept).append(request)
            self._queues[urgency] = kept
        self._queues = {urgency: queue for urgency, queue in self._queues.items() if queue}
        self._length -= len(removed)
        self.rows -= _rows(removed)
        if not any(urgency != first for urgency in self._queues):
            self._earned_rows = 0.0
        return removed

    def clear(self) -> list[Request[T]]:
        """Remove and return all requests."""
        left = [request for urgency in sorted(self._queues) for request in self._queues[urgency]]
        self._queues.clear()
        self._length = self.rows = 0
        self._earned_rows = 0.0
        return left


def _rows(requests: Iterable[Request[T]]) -> int:
    return sum(request.rows for request in requests)


def _pack(size: int, rows: Iterable[int]) -> int:
    """Return how many requests of a queue form the next batch of at most `size` rows."""
    waiting = iter(rows)
    first_count, first_room, misfit = _fit(size, waiting)
    if not misfit or not first_room:
        return first_count
    if not first_count:
        more, *_ = _fit(-misfit % size, waiting)
        return 1 + more
    if misfit > size:
        return first_count
    # Two batches would be the first and this second one, and leave the room of both unused.
    second_count, second_room, second_misfit = _fit(size - misfit, waiting)
    room = first_room + second_room
    if not 0 < second_misfit <= room:
        return first_count
    more, *_ = _fit(room - second_misfit, waiting)
    return first_count + 1 + second_count + 1 + more


def _fit(room: int, waiting: Iterator[int]) -> tuple[int, int, int]:
    """Return how many fit, the room they leave, and the rows of the first misfit; 0 if none."""
    count = 0
    for rows in waiting:
        if rows > room:
            return count, room, rows
        room -= rows
        count += 1
    return count, room, 0
