"""A Redis whose memory is full keeps no worker from starting, or from connecting again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kombu import Producer
from redis import Redis
from redis.exceptions import OutOfMemoryError

from celery_batch.processes.redis_server import RedisServer
from tests.services import setup as launching
from tests.services.setup import Setup, Worker, emptied, open_setup
from tests.services.shared_setup import eventually


@pytest.fixture
def client() -> Iterator[Redis]:
    """A client of a Redis that no other test uses, and that may become full."""
    with (
        RedisServer() as server,
        Redis(unix_socket_path=f"{server.directory}/redis.sock") as client,
    ):
        client.config_set("maxmemory-policy", "noeviction")
        yield client


@pytest.fixture
def full_setup(
    client: Redis, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setup]:
    """Broker and results on that Redis; its workers look for neighbours, as workers do."""
    monkeypatch.setattr(launching, "_QUICK", ("-l", "INFO"))
    path = client.connection_pool.connection_kwargs["path"]
    url, memory = f"redis+socket://{path}?virtual_host=0", emptied(redis_server)
    with open_setup(url, tmp_path, memory=memory) as setup:
        yield setup


def await_log(worker: Worker, words: str, times: int = 1) -> None:
    """Return when a worker has logged these words so many times."""
    eventually(lambda: worker.log.count(words) >= times, words, timeout=60)


def test_a_worker_starts_on_a_full_redis(full_setup: Setup, client: Redis):
    """It runs what waits once results can be stored; a new queue is bound as soon as possible."""
    results = [full_setup.double.delay(number) for number in range(20)]
    client.config_set("maxmemory", 1)
    worker = full_setup.launch("-c", "1", "-Q", "celery,new")
    await_log(worker, " ready.")
    client.config_set("maxmemory", 0)

    assert [2 * number for number in range(20)] == [each.get(timeout=60) for each in results]
    eventually(lambda: client.exists("_kombu.binding.new"), "the binding", timeout=60)
    assert 1 == worker.log.count("Redis is full")
    assert "Traceback" not in worker.log


def test_a_worker_connects_to_a_full_redis_again(full_setup: Setup, client: Redis):
    """A lost connection does not end it."""
    worker = full_setup.worker("-c", "1")
    subscribed = len(client.client_list("pubsub"))
    client.config_set("maxmemory", 1)
    for kind in ("pubsub", "normal"):
        client.client_kill_filter(_type=kind, skipme=True)
    await_log(worker, "Connected to", 2)
    eventually(lambda: len(client.client_list("pubsub")) >= subscribed, "the subscriptions")
    client.config_set("maxmemory", 0)

    assert 4 == full_setup.double.delay(2).get(timeout=60)
    assert "CRITICAL" not in worker.log
    assert "OutOfMemoryError" not in worker.log


def test_a_reply_to_a_control_command_that_redis_refuses_is_one_line(
    full_setup: Setup, client: Redis, monkeypatch: pytest.MonkeyPatch
):
    """Redis may be full by the time of the reply; whoever asked gets none, and may ask again."""
    worker = full_setup.worker("-c", "1")
    publish = Producer.publish

    def publish_to_full(*args: Any, **options: Any) -> Any:
        client.config_set("maxmemory", 1)
        return publish(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "publish", publish_to_full)
        with suppress(OutOfMemoryError):  # of what it asks after that
            full_setup.app.control.broadcast("batch_status", reply=True, timeout=0.1)
    await_log(worker, "Could not reply to a control command")
    client.config_set("maxmemory", 0)

    assert worker.status()
    assert "Traceback" not in worker.log
