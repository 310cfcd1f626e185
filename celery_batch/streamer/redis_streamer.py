"""The client of service-streamer on Redis, without workers of its own.

Items are ordinary Celery tasks with one argument, so any Celery client may send them too:
``app.send_task("streamer.predict", (item,), queue="streamer")``, or with the prefix ``bert``:
``"streamer.bert.predict"`` to the queue ``"streamer.bert"``.

A request of n items is n tasks that are written at once, and no chunk.  So an item that
fails keeps its own error, one that kills its process fails no others, a long request is
spread over all workers and shares batches with others, and a worker gets the same messages
from this client and from any Celery client.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from celery_batch.batching.policy import is_above_zero, is_whole, require
from celery_batch.client.publish.send_many import PartlySent
from celery_batch.client.results.futures import future_of, notify_cancelled, settle
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.deadline import waiting_until
from celery_batch.item_lists import refuse_one_value
from celery_batch.streamer.redis_app import DEFAULT, client_app, queue_of, task_of

__all__ = ["RedisStreamer", "RequestFuture"]

#: Seconds that sending a request may take, unless `worker_timeout` is longer.
_LEAST_SENDING = 5.0

#: Futures with callbacks, which keep them alive.
_with_callbacks: set[RequestFuture] = set()


class RequestFuture(Future):  # type: ignore[type-arg]
    """Done when all items of a request are answered; leaves nothing behind if it is forgotten."""

    def __init__(self, results: list[Any], timeout: float | None, queue: str) -> None:
        super().__init__()
        self._timeout = timeout
        self._queue = queue
        self._results = results
        self._process = os.getpid()
        #: A future of each item.
        self._items: list[Future[Any]] = []
        super().add_done_callback(notify_cancelled)

    def watch(self) -> None:
        """Be done when all items are answered."""
        me = weakref.ref(self)

        def answered(_item: Future[Any]) -> None:
            future = me()
            if future is not None and next(future._count) == len(future._items):  # noqa: SLF001 (our own)
                future._settle()  # noqa: SLF001 (our own)

        self._count = itertools.count(1)
        self._items = [future_of(result) for result in self._results]
        for item in self._items:
            item.add_done_callback(answered)
        if not self._items:
            self._settle()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Return the outputs, as any `Future`; in ``worker_timeout`` seconds unless given."""
        self._follow_fork()
        limit = self._timeout if timeout is None else timeout
        try:
            outputs: list[Any] = super().result(limit)
        except TimeoutError as error:
            if self.done():
                raise  # the model's own
            raise _timeout_error(self._queue, limit) from error
        return outputs

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the first item that failed has failed with, or None."""
        self._follow_fork()
        limit = self._timeout if timeout is None else timeout
        try:
            return super().exception(limit)
        except TimeoutError as error:
            raise _timeout_error(self._queue, limit) from error

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Have a function called when this is done, in the thread that receives results."""
        self._follow_fork()
        _with_callbacks.add(self)
        super().add_done_callback(fn)
        if self.done():
            _with_callbacks.discard(self)

    def cancel(self) -> bool:
        """Give up waiting and return whether that was in time; the items are still run."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._stop_waiting()
        return is_cancelled

    def _follow_fork(self) -> None:
        """Listen in this process, if it is a fork of the one that sent the request."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._condition = threading.Condition()  # another thread may have held the old one
            if not self.done():
                self.watch()

    def _settle(self) -> None:
        settle(self, lambda: ([item.result() for item in self._items],))
        _with_callbacks.discard(self)

    def _stop_waiting(self) -> None:
        _with_callbacks.discard(self)
        for item in self._items:
            item.cancel()

    def __del__(self) -> None:
        self._stop_waiting()


class RedisStreamer:
    """
    Sends requests to the workers of a prefix, from any thread of any number of processes.

    Every item becomes a task of its own, and those of a request are written at once.

    Args:
        redis_broker: ``"host:port"`` or a broker URL of Celery's.
        prefix: Which model: each prefix is a queue of its own.
        worker_timeout: Seconds after which `predict`, and a future's ``result()`` without a
            timeout, give up; None for never.
        max_queue: Most items that may wait in Redis; None for any number.

    Raises:
        ConfigurationError: The address of Redis or the number of items is invalid.
    """

    def __init__(
        self,
        redis_broker: str = DEFAULT,
        prefix: str = "",
        *,
        worker_timeout: float | None = 20,
        max_queue: int | None = None,
    ) -> None:
        is_bound = max_queue is None or is_whole(max_queue, 1)
        require(is_bound, "max_queue", "a whole number of at least 1, or None", max_queue)
        is_timeout = worker_timeout is None or is_above_zero(worker_timeout)
        require(is_timeout, "worker_timeout", "seconds above 0, or None", worker_timeout)
        self.max_queue = max_queue
        self.prefix = prefix
        self.worker_timeout = worker_timeout
        #: The queue that our workers consume.
        self.queue = queue_of(prefix)
        #: The Celery app, whose ``control.inspect()`` asks the workers.
        self.app = client_app(redis_broker)
        #: The Celery task that an item becomes.
        self.task = type(self.app.tasks.get(task_of(prefix)) or _register(self.app, prefix))()
        self.task.max_queue = max_queue

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Give up a Redis that hangs; raise connection errors as one kind, with the URL."""
        timeout = inf if self.worker_timeout is None else max(self.worker_timeout, _LEAST_SENDING)
        try:
            with waiting_until(monotonic() + timeout):
                yield
        except RuntimeError as error:  # what Celery raises when retries of the backend fail
            if not isinstance(error.__cause__, self.app.backend.connection_errors):
                raise
            raise self._unreachable(error.__cause__) from error
        except PartlySent:
            raise  # some were sent, and the error has their results
        except (OperationalError, *self.app.backend.connection_errors) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> OperationalError:
        url = maybe_sanitize_url(self.app.conf.broker_write_url)
        return OperationalError(f"Redis at {url} cannot be reached: {error}")

    def submit(self, batch: Iterable[Any]) -> RequestFuture:
        """
        Send a request and return a future of its outputs.

        Args:
            batch: The items: JSON values, and bytes.

        Returns:
            A future, whose result is a list with an output for each item.

        Raises:
            TypeError: ``batch`` is a text or a mapping, and no list.
            QueueFull: ``max_queue`` items would wait, or more.
            OperationalError: Redis could not be reached, or refused a message.
            EncodeError: An item cannot be encoded as JSON.
        """
        refuse_one_value("a streamer", batch)
        items = list(batch)
        with self._sending():
            if len(items) == 1:
                results = [self.task.apply_async((items[0],), None, queue=self.queue)]
            else:
                results = self.task.apply_many(_calls(items), queue=self.queue)
        future = RequestFuture(results, self.worker_timeout, self.queue)
        future.watch()
        return future

    def predict(self, batch: Iterable[Any]) -> list[Any]:
        """
        Send a request and return its outputs, one for each item, in order.

        Args:
            batch: The items: JSON values, and bytes.

        Returns:
            An output for each item, in order.

        Raises:
            TypeError: ``batch`` is a text or a mapping, and no list.
            QueueFull: ``max_queue`` items would wait, or more.
            TimeoutError: They were not all there after ``worker_timeout`` seconds.
            Exception: What the first item that failed has failed with.
        """
        future = self.submit(batch)
        try:
            return future.result(self.worker_timeout)
        except TimeoutError:
            future.cancel()  # of no effect where it is the model's own
            raise

    async def apredict(self, batch: Iterable[Any]) -> list[Any]:
        """Send a request and return its outputs, without blocking the loop; see `predict`."""
        refuse_one_value("a streamer", batch)
        items = list(batch)
        try:
            async with asyncio.timeout(self.worker_timeout) as limit:
                results = await self._send(items)
                return [await result for result in results]
        except TimeoutError as error:
            if not limit.expired():
                raise  # the model's own
            raise _timeout_error(self.queue, self.worker_timeout) from error

    async def _send(self, items: list[Any]) -> list[Any]:
        with self._sending():
            if len(items) == 1:
                return [await self.task.aapply_async((items[0],), queue=self.queue)]
            return await self.task.aapply_many(_calls(items), queue=self.queue)  # type: ignore[no-any-return]

    def destroy_workers(self) -> None:
        """
        Refuse: a client does not own the workers.

        Raises:
            NotImplementedError: Always.
        """
        msg = "a RedisStreamer owns no workers; stop the program that runs them"
        raise NotImplementedError(msg)


def _calls(items: list[Any]) -> Iterator[tuple[Any, None]]:
    """Yield the arguments of each item's call."""
    return (((item,), None) for item in items)


def _timeout_error(queue: str, limit: float | None) -> TimeoutError:
    return TimeoutError(
        f"no answer from the workers of queue {queue!r} within {limit:g} s: is one running, and is"
        f" it fast enough? (worker_timeout)"
    )


def _register(app: Celery, prefix: str) -> Any:
    def predict(item: Any) -> Any:
        msg = f"{item!r} is for the workers of queue {queue_of(prefix)!r}"
        raise NotImplementedError(msg)

    # Not shared: the program's other Celery apps get no such task.
    return app.task(base=ClientMethods, name=task_of(prefix), shared=False)(predict)
