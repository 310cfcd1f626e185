"""Connections that are closed while a call is sent, by another thread or by kombu itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.transport.redis import Channel
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_batch import BatchTask
from celery_batch.client.publish.transport import _await_answer
from celery_batch.processes.redis_server import RedisServer


def _can_read(_seconds: float) -> bool:
    raise ValueError("I/O operation on closed file.")  # as redis-py's buffer says it


def test_a_connection_that_is_closed_meanwhile_is_lost():
    """The caller sees an error of the broker, which is tried again, and not one of a buffer."""
    connection = SimpleNamespace(socket_timeout=None, can_read=_can_read)

    with pytest.raises(RedisConnectionError, match="was closed while it was read"):
        _await_answer(connection, time.monotonic() + 20.0, 0)


@pytest.fixture
def double(broker: str) -> Iterator[Any]:
    """A batch task of an app that has not connected yet."""
    with Celery(broker=broker, backend=broker, set_as_current=False) as app:

        @app.task(base=BatchTask)
        def double(x: list[int]) -> list[int]:
            return [2 * each for each in x]

        yield double


def queued(server: RedisServer) -> int:
    """Return how many messages wait in the default queue."""
    with Redis(unix_socket_path=str(server.directory / "redis.sock")) as client:
        return int(client.llen("celery"))


def test_a_call_is_sent_whose_declaration_lost_the_connection(
    double: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """Kombu connects again and publishes on the closed channel: the call is made once more."""
    own, numbers = Channel.queue_declare, count()

    def declare(channel: Channel, *args: Any, **options: Any) -> Any:
        if next(numbers) == 0:
            raise RedisConnectionError("lost")
        return own(channel, *args, **options)

    monkeypatch.setattr(Channel, "queue_declare", declare)
    double.apply_async((21,), countdown=60)

    assert 1 == queued(redis_server)
    assert next(numbers) > 1
