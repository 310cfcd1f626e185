"""Connections to a Redis that does not answer are aborted, with every redis-py."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis
from redis.connection import AbstractConnection

from celery_batch.compat.redis import abort_connections, allow_connections, track_connections
from celery_batch.processes.redis_server import RedisServer


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have connections recorded until the test ends."""
    for name in ("connect", "connect_check_health"):
        if hasattr(AbstractConnection, name):
            monkeypatch.setattr(AbstractConnection, name, getattr(AbstractConnection, name))
    track_connections()
    try:
        yield
    finally:
        allow_connections()


@pytest.mark.usefixtures("tracked")
def test_who_waits_for_a_silent_redis_waits_no_longer() -> None:
    """A read without a limit ends, and other threads connect no more until they are allowed to."""
    errors: list[BaseException] = []

    def wait(client: redis.Redis) -> None:
        try:
            client.blpop(["never"])
        except (redis.ConnectionError, ConnectionAbortedError) as error:
            errors.append(error)

    with RedisServer() as server:
        clients = [
            redis.Redis(unix_socket_path=str(server.directory / "redis.sock")) for _ in range(2)
        ]
        waiting = threading.Thread(target=wait, args=(clients[0],), daemon=True)
        waiting.start()
        while not clients[1].info("clients")["blocked_clients"]:
            pass
        abort_connections(clients[1], lambda: None)
        waiting.join(10)
        ended = not waiting.is_alive()
        late = threading.Thread(target=wait, args=(clients[0],), daemon=True)
        late.start()
        late.join(10)
        allow_connections()
        assert clients[0].ping()
        for client in clients:
            client.close()

    assert ended
    assert [ConnectionAbortedError] == [type(error) for error in errors[1:]]
