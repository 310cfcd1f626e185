"""
The web processes' side of service-streamer on Redis: asks, and owns no worker.

A request of n items is n tasks that are written at once, and no chunk.  So an item that
fails keeps its own error, one that kills its process takes no others along, a long
request is spread over all workers and stands in nobody's way, and a worker sees the same
messages from us and from any Celery client.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from celery_batch.asking import Asking
from celery_batch.client.many import apply_many
from celery_batch.errors import ConfigurationError, QueueFull
from celery_batch.streamer.line import app_for, queue_of, task_of
from celery_batch.streamer.redis_address import DEFAULT, connection_settings
from celery_batch.streamer.request_future import RequestFuture

__all__ = ["RedisStreamer"]

#: One app, and so one connection that hears of answers, for each Redis.
_apps: dict[str, Celery] = {}
_guard = threading.Lock()

#: The apps whose Redis has answered.
_reached: weakref.WeakSet[Celery] = weakref.WeakSet()

#: Seconds in which a Redis has to take a connection.
_CONNECT = 1.0

#: How long to try a Redis that was never there, and one that may just be restarted.
_ONCE_MORE = {"max_retries": 1, "interval_start": 0.5}
_FOR_A_WHILE = {"max_retries": 4, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 0.6}


class RedisStreamer:
    """
    Sends requests to the workers of a prefix, from any thread of any number of processes.

    Every item becomes a task of its own, and those of a request are written at once.

    Args:
        redis_broker: ``"host:port"`` or a broker URL of Celery's, see
            `celery_batch.streamer.redis_address.connection_settings`.
        prefix: Which model: each prefix is a queue of its own.
        worker_timeout: Seconds after which `predict`, and a future's ``result()`` without a
            timeout, give up; None for never.
        max_queue: Most items that may wait in Redis; None for any number, and one round
            trip less for each request.

    Raises:
        ConfigurationError: It is no address of a Redis, or no number of items.
    """

    def __init__(
        self,
        redis_broker: str = DEFAULT,
        prefix: str = "",
        *,
        worker_timeout: float | None = 20,
        max_queue: int | None = None,
    ) -> None:
        if max_queue is not None and max_queue < 1:
            raise ConfigurationError(f"max_queue: must be at least 1, or None, got {max_queue!r}")
        self.max_queue = max_queue
        self.prefix = prefix
        self.worker_timeout = worker_timeout
        #: The queue that our workers consume.
        self.queue = queue_of(prefix)
        with _guard:
            #: The Celery app: its ``control.inspect()`` asks the workers.
            self.app = _app(redis_broker)
            #: The Celery task that an item becomes.
            self.task = self.app.tasks.get(task_of(prefix)) or _register(self.app, prefix)

    @contextmanager
    def _away_is_told(self) -> Iterator[None]:
        """Say which Redis is away, in an error of one kind."""
        try:
            yield
        except RuntimeError as error:  # Celery says then that it must be restarted itself
            if not isinstance(error.__cause__, self.app.backend.connection_errors):
                raise
            raise OperationalError(self._away(error.__cause__)) from error
        except OperationalError as error:
            if type(error) is not OperationalError:
                raise  # some were sent, and the error has their results
            raise OperationalError(self._away(error)) from error

    def _away(self, error: BaseException) -> str:
        url = maybe_sanitize_url(self.app.conf.broker_url)
        return f"Redis at {url} cannot be reached: {error}"

    def _reach(self) -> None:
        """Try the Redis once, before all who would try it in turn, each with patience."""
        if self.app not in _reached:
            with self._away_is_told(), self.app.connection_for_write() as connection:
                connection.ensure_connection(**_ONCE_MORE)
            _reached.add(self.app)

    def __repr__(self) -> str:
        return f"<RedisStreamer of {self.queue}>"

    def submit(self, batch: Iterable[Any]) -> RequestFuture:
        """
        Send a request and return a future of its outputs.

        Args:
            batch: The items: what JSON can say, and bytes.

        Raises:
            QueueFull: There is no room in line for all of them.
            OperationalError: Redis could not be reached, or refused a message.
            EncodeError: An item is nothing that JSON can say.
        """
        items = list(batch)
        self._reach()
        with self._away_is_told():
            self._require_room(len(items))
            if len(items) == 1:
                results = [self.task.apply_async((items[0],), None, queue=self.queue)]
            else:
                rows = (((item,), None) for item in items)
                results = apply_many(self.task, rows, {"queue": self.queue})
        future = RequestFuture(results, self.worker_timeout)
        future.watch()
        return future

    def predict(self, batch: Iterable[Any]) -> list[Any]:
        """
        Send a request and return its outputs, one for each item, in order.

        Args:
            batch: The items: what JSON can say, and bytes.

        Raises:
            QueueFull: There is no room in line for all of them.
            TimeoutError: They were not all there after ``worker_timeout`` seconds.
            Exception: What the first item that failed has failed with.
        """
        future = self.submit(batch)
        try:
            return future.result(self.worker_timeout)
        except TimeoutError as error:
            if future.done():
                raise  # the model's own
            future.cancel()
            raise self._too_late() from error

    async def apredict(self, batch: Iterable[Any]) -> list[Any]:
        """
        Send a request from a coroutine and return its outputs; the loop goes on meanwhile.

        Args:
            batch: The items: what JSON can say, and bytes.

        Raises:
            QueueFull: There is no room in line for all of them.
            TimeoutError: They were not all there after ``worker_timeout`` seconds.
            Exception: What the first item that failed has failed with.
        """
        items = list(batch)
        try:
            async with asyncio.timeout(self.worker_timeout) as limit:
                results = await self._send(items)
                return [await result for result in results]
        except TimeoutError as error:
            if not limit.expired():
                raise  # the model's own
            raise self._too_late() from error

    async def _send(self, items: list[Any]) -> list[Any]:
        if self.max_queue is not None or self.app not in _reached:
            await asyncio.to_thread(self._reach)
            with self._away_is_told():
                await asyncio.to_thread(self._require_room, len(items))
        calls = (self.task.aapply_async((item,), queue=self.queue) for item in items)
        with self._away_is_told():
            return await asyncio.gather(*calls)

    def destroy_workers(self) -> None:
        """
        Refuse: a client does not own the workers.

        Raises:
            NotImplementedError: Always.
        """
        msg = "a RedisStreamer owns no workers; stop the program that runs them"
        raise NotImplementedError(msg)

    def _require_room(self, items: int) -> None:
        if self.max_queue is None:
            return
        with (
            self.app.producer_or_acquire() as producer,
            producer.connection._reraise_as_library_errors(),  # noqa: SLF001 (as Celery does)
        ):
            waiting = int(producer.channel._size(self.queue))  # noqa: SLF001 (of all its priorities' lists)
        if waiting + items > self.max_queue:
            raise QueueFull(
                f"{waiting} items wait in {self.queue!r} and {items} more are too many for"
                f" {self.max_queue}"
            )

    def _too_late(self) -> TimeoutError:
        return TimeoutError(
            f"no answer from the workers of queue {self.queue!r} within {self.worker_timeout:g} s:"
            f" is one running, and is it fast enough? (worker_timeout)"
        )


def _app(redis_broker: str) -> Celery:
    settings = connection_settings(redis_broker)
    place = str(settings)
    found = _apps.get(place)
    if found is None:
        # Nobody waits in Celery's way here, where each thread would need a backend of its own;
        # to make one for each thread of a web server costs more than a request.
        found = _apps[place] = app_for(
            redis_broker,
            result_backend_thread_safe=True,
            # Twenty tries otherwise, in 25 seconds, before a caller hears that Redis is away.
            result_backend_transport_options={
                **settings["result_backend_transport_options"],
                "retry_policy": {"max_retries": 1},
            },
            broker_transport_options={
                **settings["broker_transport_options"],
                **_FOR_A_WHILE,
                "socket_connect_timeout": _CONNECT,
            },
            redis_socket_connect_timeout=_CONNECT,
        )
    return found


def _register(app: Celery, prefix: str) -> Any:
    def predict(item: Any) -> Any:
        msg = f"{item!r} is for the workers of queue {queue_of(prefix)!r}"
        raise NotImplementedError(msg)

    return app.task(base=Asking, name=task_of(prefix))(predict)


def _begin_anew() -> None:
    global _guard  # noqa: PLW0603 (another thread may have held it when we were forked)
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
