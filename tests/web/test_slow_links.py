"""Large inputs on slow links: the time-outs of `prepare` are for servers that do not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_batch import BatchTask, BrokerUnreachable
from celery_batch.errors import DeadlineExceeded
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.web.predict import predict
from celery_batch.web.prepare import prepare
from tests.conftest import need
from tests.services.servers.ports import quiet_port
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.servers.slow_link import slow_link

#: Characters of an input, and bytes a second: it takes twice as long as a command may.
SIZE, RATE = 8 << 20, 2e6

#: Bytes that the system's buffers and a burst of the link take at most, 4 MiB the sender's: for
#: RabbitMQ these count as sent.
BUFFERED = 6 << 20


@pytest.fixture(scope="module")
def redis_on_tcp() -> Iterator[RedisServer]:
    """A Redis with a port."""
    need(find_redis_server)
    with RedisServer(port=quiet_port()) as server:
        yield server


@pytest.fixture(params=["redis", "rabbitmq"])
def far(request: pytest.FixtureRequest, redis_on_tcp: RedisServer) -> Iterator[tuple[Any, str]]:
    """A task of a web process whose broker is behind a slow link, and the broker's own URL."""
    server: RedisServer | RabbitMQServer = redis_on_tcp
    if request.param == "rabbitmq":
        server = request.getfixturevalue("rabbitmq_server")
    assert server.port is not None
    with slow_link(server.port, RATE) as port:
        broker = server.url.replace(f":{server.port}/", f":{port}/")
        with Celery("far", broker=broker, backend=redis_on_tcp.url, set_as_current=False) as app:
            app.conf.task_default_queue = f"far-{port}"
            prepare(app)
            task = app.task(base=BatchTask, name="far")(_same)
            for options in ({}, {"expires": 600}):  # the first of each kind goes Celery's own way
                task.apply_async(("first",), **options)
            yield task, server.url


def test_a_large_input_is_sent(far: tuple[Any, str]):
    """As long as it goes on: with a deadline and without one."""
    task, url = far
    began = time.monotonic()
    task.delay("x" * SIZE)
    took = time.monotonic() - began
    with pytest.raises(DeadlineExceeded, match="no answer"):  # since no worker is there
        predict(task, ["y" * SIZE], timeout=12.0, on_timeout="leave", expires=600)

    assert took > (SIZE - BUFFERED) / RATE
    assert [SIZE, SIZE] == sorted(_sizes(url, task.app.conf.task_default_queue))[-2:]


def test_a_deadline_ends_a_large_input(far: tuple[Any, str]):
    """It is not sent on when its time is over."""
    task, _url = far
    began = time.monotonic()
    with pytest.raises((BrokerUnreachable, DeadlineExceeded)):
        predict(task, ["x" * SIZE * 2], timeout=1.5)
    took = time.monotonic() - began

    assert took < 7.0  # to send all of it takes 8 s


def _sizes(url: str, name: str) -> Iterator[int]:
    """Yield the sizes of the four inputs in the queue, once they are there."""
    with Connection(url) as connection:
        queue = connection.SimpleQueue(name)
        for _ in range(4):
            args, *_others = queue.get(timeout=60).payload
            yield len(args[0])
        queue.close()


def _same(text: list[str]) -> list[str]:
    return text
