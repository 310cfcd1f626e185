"""Stands for a worker: stores values as Celery does, and notifies as our workers do."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, Self
from uuid import uuid4

import redis
from celery import Celery

from celery_batch.client.results.listener import close_listener, listener_for
from celery_batch.client.results.result import BatchResult, adopt_groups
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import write_replies
from tests.services.backends import close_backend

__all__ = ["FakeWorker"]


class FakeWorker:
    """
    A client's app, and what a worker would do for it.

    Args:
        server: The Redis that is its result backend.
        conf: The app's settings.
    """

    def __init__(self, server: RedisServer, **conf: Any) -> None:
        self.redis = redis.Redis(unix_socket_path=str(server.directory / "redis.sock"))
        self.app = Celery("asker", broker=server.url, backend=server.url, set_as_current=False)
        self.app.conf.update(conf)
        adopt_groups(self.app)  # as the first call does
        self._backend = self.app.backend  # of this thread: each has one of its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        gc.collect()  # Celery's results unsubscribe when they go; Redis should be there then
        close_listener(self.app)
        close_backend(self.app)
        self.app.close()
        self.redis.close()

    @property
    def listener(self) -> Any:
        """The app's listener."""
        return listener_for(self.app)

    def ask(self, **options: Any) -> BatchResult:
        """Return the result of a message that has been sent, or so it seems."""
        result = BatchResult(str(uuid4()), app=self.app, **options)
        result.pending_result = self.listener.registry.expect(result.pending_result)
        return result

    def ask_many(self, number: int) -> list[BatchResult]:
        """Return the results of messages that have been sent, or so it seems."""
        results = [BatchResult(str(uuid4()), app=self.app) for _ in range(number)]
        for result in results:
            result.pending_result = self.listener.registry.expect(result.pending_result)
        return results

    def store(self, result: Any, value: Any, state: str = "SUCCESS", **more: Any) -> None:
        """End a task as stock Celery does: store its value, and notify its subscribers."""
        self._backend.store_result(result.id, value, state, **more)

    def notify(self, results: Iterable[Any], channel: str | None = None) -> int:
        """Publish what is stored on the channel; return how many subscribers received it."""
        results = list(results)
        keys = [self.app.backend.get_key_for_task(result.id) for result in results]
        ids = [result.id for result in results]
        payloads = write_replies(zip(ids, self.redis.mget(keys), strict=True))
        return sum(self.redis.publish(channel or self.listener.channel, each) for each in payloads)

    def answer(self, result: Any, value: Any, state: str = "SUCCESS", **more: Any) -> None:
        """End a task as our workers do."""
        self.store(result, value, state, **more)
        self.notify([result])

    def subscribers(self) -> dict[str, int]:
        """Return how many listen on each channel."""
        names = self.redis.pubsub_channels()
        return {name.decode(): number for name, number in self.redis.pubsub_numsub(*names)}
