"""Callers of refused messages are told when that can be done, and nothing waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from celery_batch import MessageRefused
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.hostile import encoded, valid
from tests.services.setup import emptied, open_setup


def test_backend_that_hangs_holds_up_no_messages(redis_server: RedisServer, tmp_path: Path):
    """While the result backend answers no write, the worker hears, and refuses, as ever."""
    broker = emptied(redis_server)
    with RedisServer() as backend, open_setup(broker, tmp_path, backend=backend.url) as setup:
        worker = setup.worker("-c", "1")
        keeper = redis.Redis(unix_socket_path=str(backend.directory / "redis.sock"))
        keeper.client_pause(60_000, all=False)
        refused = [valid(retries="many") for _ in range(3)]
        with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as client:
            client.lpush("celery", *map(encoded, refused))

        said = lambda: "" if 3 == worker.log.count("Refused a message") else "not all read"  # noqa: E731
        wait_until(said, [worker.child], what="three messages refused", timeout=60)
        wait_until(worker.why_not_ready, [worker.child], what="a worker that hears", timeout=60)
        keeper.execute_command("CLIENT", "UNPAUSE")
        for message in refused:
            with pytest.raises(MessageRefused):
                setup.app.AsyncResult(message["headers"]["id"]).get(timeout=30)
        keeper.close()
