"""

What all streamers of one machine share: submit, predict, start and stop.

A streamer belongs to the process that uses it.  Made before a fork, as in a web server
that preloads its application, it begins anew in each copy that uses it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import groupby
from typing import Any, Protocol, Self, TypedDict

from celery_batch.batching.policy import BatchPolicy, is_above_zero, is_whole, require
from celery_batch.errors import BatchError, ConfigurationError, InvalidKey, StreamerClosed
from celery_batch.item_lists import refuse_one_value
from celery_batch.runtime.item_cost import ItemCost
from celery_batch.streamer.futures import Answer, AnswerLock, CombinedAnswer
from celery_batch.streamer.model_adapters import Adapter
from celery_batch.streamer.request_queue import RequestQueue

__all__ = ["GRACE", "BaseStreamer", "StreamerOptions", "WorkerPool"]

logger = logging.getLogger(__name__)

#: Seconds that batches get to finish when their streamer ends.
GRACE = 5.0

_CLOSED = "the streamer's workers were destroyed; make a new one to go on"
_FORKED = "the request was made before this process was forked; its answer went to the parent"


class WorkerPool(Protocol):
    """The workers of a streamer."""

    def stop(self, grace: float) -> None:
        """End them, after what they are running or so many seconds."""


class StreamerOptions(TypedDict, total=False):
    """
    What streamers of one machine take beside service-streamer's arguments.

    Args:
        max_queue: Most items that may wait; further requests fail with `QueueFull`.
        batch_by: Returns an item's key; only items with equal keys share a batch.  It runs in the
            caller's process.
        cost: Takes an item and returns its cost, such as `len`; a `Streamer` has to be able to
            import it.  A `Model` class may have it.
        max_batch_cost: The highest cost of one call; None to count items alone.
        padded: Whether the model pads all items to the longest.
        sort_window: From how many batches' worth of waiting items a padded batch of similar
            lengths is chosen; 0 for first come, first served.
    """

    max_queue: int | None
    batch_by: Callable[[Any], Hashable] | None
    cost: Callable[[Any], Any] | None
    max_batch_cost: float | None
    padded: bool
    sort_window: int


class BaseStreamer(ABC):
    """The caller's side of a streamer."""

    def __init__(
        self,
        batch_size: int,
        max_latency: float,
        worker_timeout: float,
        model: Adapter,
        *,
        max_queue: int | None = None,
        batch_by: Callable[[Any], Hashable] | None = None,
        cost: Callable[[Any], Any] | None = None,
        max_batch_cost: float | None = None,
        padded: bool = False,
        sort_window: int = 8,
    ) -> None:
        batch_by = model.key_option if batch_by is None else batch_by
        if not (batch_by is None or callable(batch_by)):
            raise ConfigurationError(
                f"batch_by: must be a function of an item, or None, got {batch_by!r}"
            )
        is_bound = max_queue is None or is_whole(max_queue, 1)
        require(is_bound, "max_queue", "a whole number of at least 1, or None", max_queue)
        require(is_above_zero(worker_timeout), "worker_timeout", "seconds above 0", worker_timeout)
        try:
            self.policy = BatchPolicy(
                batch_size,
                max_latency,
                max_batch_cost=max_batch_cost,
                padded=padded,
                sort_window=sort_window,
            )
        except ConfigurationError as error:  # which has the names of a task's options
            words = str(error).replace("max_batch_size: ", "batch_size: ", 1)
            raise ConfigurationError(words.replace("max_wait: ", "max_latency: ", 1)) from None
        self._item_cost = model.limit_cost(cost, self.policy.cost_limits)
        self._model = model
        self.worker_timeout = worker_timeout
        self.max_queue = max_queue
        self._size = batch_size
        self._batch_by = batch_by
        self._request_queue: RequestQueue | None = None
        self._pool: WorkerPool | None = None
        self._is_closed = False
        _streamers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.destroy_workers()

    @abstractmethod
    def _start_workers(self, request_queue: RequestQueue) -> WorkerPool:
        """Start workers that take their batches there."""

    def submit(self, batch: Iterable[Any]) -> Answer:
        """
        Ask for the outputs of some items, and do not wait for them.

        Args:
            batch: One item or more.

        Returns:
            A `concurrent.futures.Future` of their outputs, in order.

        Raises:
            TypeError: ``batch`` is a text or a mapping, and no list.
            QueueFull: ``max_queue`` items wait already.
            LoadFailed: The model could not be loaded.
            StreamerClosed: The workers were destroyed.
            InvalidKey: ``batch_by`` raised, or returned what is not hashable.
            InvalidCost: The cost of an item cannot be computed.
        """
        refuse_one_value("a streamer", batch)
        items = list(batch)
        request_queue = self._request_queue or self._begin()
        lock, rows = request_queue.answer_lock, len(items)
        if self._batch_by is not None:
            parts = list(self._keyed_parts(self._batch_by, items, lock))
        elif 0 < rows <= self._size:
            parts = [Answer(items, lock)]
        else:
            parts = [Answer(items[i : i + self._size], lock) for i in range(0, rows, self._size)]
        if self._item_cost is not None:
            for part in parts:
                part.cost = self._cost_of(part.items, self._item_cost)
        request_queue.add(parts, rows, self)
        return parts[0] if len(parts) == 1 else CombinedAnswer(parts, lock)

    def _keyed_parts(
        self, batch_by: Callable[[Any], Hashable], items: list[Any], lock: AnswerLock
    ) -> Iterator[Answer]:
        """Yield requests of one key each, in the order of their items."""
        try:
            runs = [(key, list(run)) for key, run in groupby(items, batch_by)]
            hash(tuple(key for key, _ in runs))
        except Exception as error:
            raise InvalidKey(
                f"batch_by: must return a hashable key for each item: {type(error).__name__}:"
                f" {error}"
            ) from error
        for key, run in runs:
            for i in range(0, len(run), self._size):
                answer = Answer(run[i : i + self._size], lock)
                answer.key = key
                yield answer

    def _cost_of(self, items: list[Any], item_cost: ItemCost) -> float:
        """Return the cost of a request, of which no item counts for more than a batch."""
        costs = [min(item_cost.of_call((item,), {}), self.policy.max_batch_work) for item in items]
        return max(costs) if self.policy.padded else sum(costs)

    def predict(self, batch: Iterable[Any]) -> list[Any]:
        """
        Return the outputs for some items, in order.

        Args:
            batch: One item or more.

        Raises:
            TimeoutError: They did not come within ``worker_timeout``; the request is given up.
            TypeError: ``batch`` is a text or a mapping, and no list.
            QueueFull: ``max_queue`` items wait already.
            Exception: What the model raised.
        """
        answer = self.submit(batch)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()  # no other caller has it
            raise

    async def apredict(self, batch: Iterable[Any]) -> list[Any]:
        """Return the outputs while the event loop does other things; see `predict`."""
        answer = asyncio.wrap_future(self.submit(batch))
        async with asyncio.timeout(self.worker_timeout):
            return await answer

    def destroy_workers(self) -> None:
        """End the workers, after what they are running; requests that wait fail."""
        with self._get_lock():
            self._is_closed = True
        if self._request_queue is not None:
            self._request_queue.close(StreamerClosed(_CLOSED))
        if self._pool is not None:
            self._pool.stop(GRACE)

    def _get_lock(self) -> threading.Lock:
        """Return the lock for starting and stopping, made at its first use in this process."""
        # A web server may fork first and have gevent patch afterwards, and a lock of before
        # would stop all greenlets.  A second thread finds what the first has made.
        lock: threading.Lock = self.__dict__.setdefault("_lock", threading.Lock())
        return lock

    def _begin(self) -> RequestQueue:
        """Return this process's request queue, its workers started."""
        with self._get_lock():
            if self._request_queue is None:
                if self._is_closed:
                    raise StreamerClosed(_CLOSED)
                request_queue = RequestQueue(
                    self.policy,
                    AnswerLock(self.worker_timeout),
                    self.max_queue,
                    by_key=self._batch_by is not None,
                )
                self._pool = self._start_workers(request_queue)
                self._request_queue = request_queue
                end = weakref.finalize(self, request_queue.close, StreamerClosed(_CLOSED))
                end.atexit = False
            return self._request_queue

    def _begin_anew(self) -> None:
        """In a forked copy of this process: forget the parent's workers, and a lock it may hold."""
        self.__dict__.pop("_lock", None)
        if self._request_queue is not None:
            self._request_queue.abandon(BatchError(_FORKED))
        self._request_queue = self._pool = None


_streamers: weakref.WeakSet[BaseStreamer] = weakref.WeakSet()


def _after_fork() -> None:
    for streamer in list(_streamers):
        streamer._begin_anew()  # noqa: SLF001 (same module)


def _at_exit() -> None:
    for streamer in list(_streamers):
        streamer.destroy_workers()


os.register_at_fork(after_in_child=_after_fork)
# There is no public way to end processes before `multiprocessing` waits for them.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
