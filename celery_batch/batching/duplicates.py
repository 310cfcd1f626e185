"""
Requests that follow an equal one out of the queue: they leave in the same batch.

Rule 1: of equal requests the first waits in the queue. The others, its followers, need no room
        in its batch and leave in it, for they run in one row. A slot does not linger for them.
Rule 2: a request that is more urgent than the first takes its place, as if it had arrived then.
Rule 3: if the first is removed, the next of them takes its place, at the end of the queue. So do
        those that a batch has no more room for, since it has a limit of requests as well.
Rule 4: a suspect equals no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from celery_batch.batching.batch import Batch, Request
from celery_batch.batching.batcher import Wait
from celery_batch.batching.keyed_batcher import AnyBatcher
from celery_batch.batching.latency_target import TargetedQueue

__all__ = ["Duplicates"]

T = TypeVar("T")


class Duplicates(Generic[T]):
    """A batcher whose requests may be equal: `key` returns the same value for equal items."""

    def __init__(
        self,
        queue: AnyBatcher[T] | TargetedQueue[T],
        key: Callable[[T], Hashable | None],
        most: int,
    ) -> None:
        self._queue, self._key, self._most = queue, key, most
        #: The requests that wait in the queue, by key.
        self._first: dict[Hashable, Request[T]] = {}
        #: Their followers, oldest first; no empty list.
        self._followers: dict[Hashable, list[Request[T]]] = {}

    def __len__(self) -> int:
        """Return how many requests wait, those that follow an equal one among them."""
        return len(self._queue) + sum(map(len, self._followers.values()))

    def has_equal(self, item: T) -> bool:
        """Return whether an equal item waits, so that this one would add no work."""
        return self._first.get(self._key(item)) is not None

    def add(self, request: Request[T]) -> None:
        """Add a request, as `Batcher.add` does."""
        key = None if request.is_suspect else self._key(request.item)
        first = None if key is None else self._first.get(key)
        if first is None:
            if key is not None:
                self._first[key] = request
            self._queue.add(request)
            return
        if request.urgency < first.urgency:
            self._queue.discard(first)
            first, request = request._replace(arrived=first.arrived), first
            self._first[key] = first
            self._queue.add(first)
        self._followers.setdefault(key, []).append(request)

    def release(self) -> None:
        """Let all followers wait by themselves, the oldest first; no more will follow."""
        followers = [each for requests in self._followers.values() for each in requests]
        self._first.clear()
        self._followers.clear()
        for request in sorted(followers, key=lambda request: request.arrived):
            self._queue.add(request)

    def next(
        self, now: float, *, full_only: bool = False, earns_share: bool = True
    ) -> Batch[T] | Wait:
        """Decide what a slot does now, as `Batcher.next` does."""
        decision = self._queue.next(now, full_only=full_only, earns_share=earns_share)
        if not isinstance(decision, Batch):
            return decision
        followers = [each for request in decision.requests for each in self._leave(request)]
        room = max(self._most - len(decision), 0)
        for request in followers[room:]:
            self.add(request)
        if not followers[:room]:
            return decision
        joined = (each._replace(rows=0, cost=0.0) for each in followers[:room])
        return replace(decision, requests=(*decision.requests, *joined))

    def _leave(self, request: Request[T]) -> list[Request[T]]:
        """Forget a request that was in the queue; return its followers."""
        key = self._key(request.item)
        if key is None or self._first.get(key) is not request:
            return []
        del self._first[key]
        return self._followers.pop(key, [])

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some waiting requests."""
        removed = self._queue.remove(is_unwanted)
        left = [each for request in removed for each in self._leave(request)]
        for key, requests in list(self._followers.items()):
            wanted = [each for each in requests if not is_unwanted(each)]
            removed += [each for each in requests if is_unwanted(each)]
            self._followers[key] = wanted
            if not wanted:
                del self._followers[key]
        for request in left:
            if is_unwanted(request):
                removed.append(request)
            else:
                self.add(request)
        return removed

    def clear(self) -> list[Request[T]]:
        """Remove and return all waiting requests, in the order in which they would have run."""
        return [
            each for request in self._queue.clear() for each in (request, *self._leave(request))
        ]
