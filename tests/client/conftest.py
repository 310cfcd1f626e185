"""Apps that send, and what of it comes to lie in the broker; results that the tests publish."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery, Task
from kombu import pools

from celery_batch import BatchTask
from celery_batch.client import queue_depth
from celery_batch.client.results import listener
from celery_batch.client.results.listener import close_listener
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.conftest import need
from tests.services.backends import close_backend
from tests.services.fake_worker import FakeWorker
from tests.services.setup import emptied


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """A Redis without the connections that the apps of other files may have left."""
    need(find_redis_server)
    with RedisServer() as server:
        yield server
        gc.collect()  # Celery's results unsubscribe when they go, and try for 20 s where it is away


class Sender:
    """
    An app that sends, and the raw messages that it sent.

    Args:
        broker: The Redis's URL.
        conf: Settings of the app.
    """

    def __init__(self, broker: str, conf: dict[str, Any]) -> None:
        self.app = Celery("sender", broker=broker, backend=broker, set_as_current=False)
        self.app.conf.update(conf)
        self.task = self.make("shout")
        self.redis = redis.Redis(connection_pool=self.app.connection().default_channel.pool)

    def make(self, name: str, **options: Any) -> Any:
        """Make a batch task of one or two arguments."""

        def shout(text: list[Any], mark: list[Any] | None = None) -> list[Any]:
            return [(one, two) for one, two in zip(text, mark or text, strict=True)]

        return self.app.task(**{"base": BatchTask, "name": name, **options})(shout)

    def stock(self, *args: Any, **options: Any) -> Any:
        """Send as Celery does."""
        task = options.pop("task", self.task)
        return Task.apply_async(task, *args, **options)

    def taken(self) -> dict[str, list[dict[str, Any]]]:
        """Take all messages out of the broker: for each list, oldest first."""
        found = {}
        for key in self.redis.scan_iter():
            if self.redis.type(key) == b"list":
                raw = self.redis.lrange(key, 0, -1)
                found[key.decode()] = [json.loads(each) for each in reversed(raw)]
                self.redis.delete(key)
        return found

    def close(self) -> None:
        """Let go of all connections."""
        close_listener(self.app)
        close_backend(self.app)
        self.app.close()
        pools.reset()


@pytest.fixture
def sender(broker: str) -> Iterator[Callable[..., Sender]]:
    """Make apps that send to an empty Redis."""
    made: list[Sender] = []

    def make(**conf: Any) -> Sender:
        made.append(Sender(broker, conf))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def background(redis_server: RedisServer) -> Iterator[FakeWorker]:
    """A client on an empty Redis, whose results the tests publish."""
    emptied(redis_server)
    for app in list(listener._listeners):  # apps of other tests in this process, which still live
        close_listener(app)
    with FakeWorker(redis_server) as background:
        wait_until(lambda: _still_subscribed(background), [], what="no subscribers", timeout=60)
        yield background


def _still_subscribed(background: FakeWorker) -> str:
    """End the subscriptions of other tests' listeners, which end by themselves a moment later."""
    background.redis.client_kill_filter(_type="pubsub")
    return ", ".join(background.subscribers())


@pytest.fixture
def lasting_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What is known of a queue's depth holds for ten minutes, and a first number is waited for.

    Else a process that stands still for two seconds admits calls that a test has refused.
    """
    monkeypatch.setattr(queue_depth, "FRESH", 600.0)
    monkeypatch.setattr(queue_depth, "_FIRST", 60.0)
