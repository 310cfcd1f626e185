"""A RedisStreamer whose Redis is not there."""

from __future__ import annotations

import asyncio
import socket

import pytest
from kombu.exceptions import OperationalError

from celery_batch import RedisStreamer
from celery_batch.streamer import redis_streamer


@pytest.mark.parametrize("max_queue", [None, 9])
@pytest.mark.parametrize("items", [[1], [1, 2, 3]], ids=["one", "many"])
@pytest.mark.parametrize("way", ["submit", "predict", "apredict"])
def test_redis_that_is_not_there_is_named(way, items, max_queue, monkeypatch):
    """The error names the Redis that cannot be reached, without its password."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://another:6379/0")
    streamer = RedisStreamer(
        "redis://:secret@localhost:1/0", worker_timeout=10, max_queue=max_queue
    )
    with pytest.raises(OperationalError) as caught:
        _ask(streamer, way, items)

    assert str(caught.value).startswith("Redis at redis://:**@localhost:1/0 cannot be reached: ")


def test_redis_that_never_replies_is_named(monkeypatch):
    """One that takes connections and is frozen holds no call for longer than it may take."""
    monkeypatch.setattr(redis_streamer, "_LEAST_SENDING", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        streamer = RedisStreamer(f"{host}:{port}", worker_timeout=0.5)
        for _ in range(2):  # the first call of a process makes what the others use
            with pytest.raises(OperationalError, match=f"Redis at redis://{host}:{port}/0 cannot"):
                streamer.predict([1])


@pytest.mark.parametrize("way", ["submit", "predict", "apredict"])
def test_a_text_is_no_batch(way):
    """Its letters are not taken for items; Redis is not asked."""
    streamer = RedisStreamer("redis://localhost:1/0")
    with pytest.raises(TypeError, match="a streamer takes a list of items, got a str; for one"):
        _ask(streamer, way, "ab")


def _ask(streamer, way, items):
    asked = getattr(streamer, way)(items)
    asyncio.run(asked)
