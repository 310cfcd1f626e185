"""Connections to a Redis that does not answer are aborted, with every redis-py."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from celery_batch.compat.redis import (
    abort_connections,
    allow_connections,
    round_trip,
    track_connections,
)
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


def test_commands_of_one_round_trip(redis_server: RedisServer):
    """Answers come in order, an error among them; words of any size arrive as they are."""
    large, small = memoryview(b"x" * (1 << 20)), b"y" * 20_000
    path = f"{redis_server.directory}/redis.sock"
    with redis.Redis(unix_socket_path=path) as client:
        words = [(b"SET", b"large", large), (b"SET", b"small", small), (b"INCR", b"small")]
        *stored, error = round_trip(client, words)
        found = round_trip(client, [(b"GET", b"small"), (b"GET", b"large"), (b"GET", b"none")])

    assert [b"OK", b"OK"] == stored
    assert isinstance(error, redis.ResponseError)
    assert [small, bytes(large), None] == found
    assert [] == round_trip(client, [])


@pytest.mark.parametrize("count", [0, 3, 100_000])
def test_words_whose_items_are_larger_than_a_byte(redis_server: RedisServer, count: int):
    """Their bytes are counted: the commands after them are read as they are."""
    numbers = memoryview(array("d", range(count)))
    path = f"{redis_server.directory}/redis.sock"
    with redis.Redis(unix_socket_path=path) as client:
        found = round_trip(client, [(b"SET", b"a", numbers), (b"GET", b"a"), (b"PING",)])

    assert [b"OK", bytes(numbers), b"PONG"] == found


@pytest.mark.parametrize("retries", [0, 1])
def test_a_round_trip_on_a_broken_connection(redis_server: RedisServer, retries: int):
    """It is made again if the client's retries say so."""
    retry = Retry(NoBackoff(), retries, (redis.ConnectionError,))
    path = f"{redis_server.directory}/redis.sock"
    with redis.Redis(unix_socket_path=path, retry=retry) as client:
        (number,) = round_trip(client, [(b"CLIENT", b"ID")])
        kill = b"CLIENT", b"KILL", b"ID", b"%d" % number, b"SKIPME", b"no"
        if retries:  # the next connection has another number
            assert [0, b"PONG"] == round_trip(client, [kill, (b"PING",)])
        else:
            with pytest.raises(redis.ConnectionError):
                round_trip(client, [kill, (b"PING",)])
        assert [b"PONG"] == round_trip(client, [(b"PING",)])
