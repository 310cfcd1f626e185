"""Connections to a Redis that does not answer are aborted, with every redis-py."""

from __future__ import annotations

import os
import socket
import threading
from array import array
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from celery_batch.compat.redis import (
    abort_connections,
    allow_connections,
    read_values,
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


class _Socket(socket.socket):
    """A socket from which few bytes come at once, and whose peer may have closed it."""

    sizes: Iterator[int] = cycle([1 << 20])
    lost = 0  # connections

    def recv_into(self, buffer: Any, *more: Any) -> int:
        """Receive some bytes."""
        if _Socket.lost:
            _Socket.lost -= 1
            self.shutdown(socket.SHUT_RDWR)
            return 0
        return super().recv_into(memoryview(buffer)[: next(self.sizes)], *more)


class _Connection(redis.UnixDomainSocketConnection):
    def _connect(self) -> socket.socket:
        made = super()._connect()
        timeout = made.gettimeout()
        own = _Socket(fileno=made.detach())
        own.settimeout(timeout)
        return own


def _client(server: RedisServer, **options: Any) -> redis.Redis:
    path = str(server.directory / "redis.sock")
    pool = redis.ConnectionPool(connection_class=_Connection, path=path, **options)
    return redis.Redis.from_pool(pool)


#: Around the bytes that are read at once.
_SIZES = [0, 1, 2, 20_000, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 5, 700_000, 0, 3]


@pytest.mark.parametrize("most", [1, 3, 1000, 1 << 17, 1 << 20])
def test_values_that_come_in_pieces(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, most: int
):
    """They are read as they were written, wherever the pieces end."""
    chance = Random(most)  # noqa: S311 (of sizes)
    sizes = _SIZES if most > 3 else [size for size in _SIZES if size < 100]
    values = [os.urandom(size) for size in sizes]
    names = [b"value %d" % number for number in range(len(values))]
    with _client(redis_server) as client:
        round_trip(client, [(b"SET", *pair) for pair in zip(names, values, strict=True)])
        monkeypatch.setattr(_Socket, "sizes", iter(lambda: chance.randint(1, most), 0))
        found = read_values(client, [(b"GET", name) for name in names])
        again = read_values(client, [(b"GETRANGE", name, b"0", b"-1") for name in names])

    assert values == found == again
    assert {bytearray} == set(map(type, found))  # not by redis-py's parser


def test_what_is_no_value(redis_server: RedisServer):
    """An error, a number and nothing are answered as redis-py has them, among values."""
    with _client(redis_server) as client:
        client.delete("none", "list")
        client.set("value", b"abc")
        client.rpush("list", "a")
        words = [(b"GET", b"value"), (b"GET", b"list"), (b"GET", b"none"), (b"STRLEN", b"value")]
        value, error, *others = read_values(client, words)

        assert b"abc" == value
        assert isinstance(error, redis.ResponseError)
        assert [None, 3] == others
        assert [] == read_values(client, [])
        assert [b"abc"] == read_values(client, words[:1])


@pytest.mark.parametrize("retries", [0, 1])
def test_a_connection_that_is_lost_as_values_are_read(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, retries: int
):
    """They are read once more if the client's retries say so."""
    with _client(
        redis_server, retry=Retry(NoBackoff(), retries, (redis.ConnectionError,))
    ) as client:
        client.set("value", b"abc")
        monkeypatch.setattr(_Socket, "lost", 1)
        if not retries:
            with pytest.raises(redis.ConnectionError):
                read_values(client, [(b"GET", b"value")])
        assert [b"abc"] == read_values(client, [(b"GET", b"value")])


def test_values_that_do_not_come():
    """The connection's time-out holds."""
    with RedisServer() as server, _client(server, socket_timeout=0.1) as client:
        client.set("value", b"abc")
        client.client_pause(60_000)
        with pytest.raises(redis.TimeoutError):
            read_values(client, [(b"GET", b"value")])


def test_what_comes_behind_values(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    """It is left to redis-py, on a connection of which nothing has been read."""
    pushed = b">2\r\n$3\r\nabc"

    class Pushing(_Socket):
        def recv_into(self, buffer: Any, *more: Any) -> int:
            """Receive what Redis sends, and what it sends without being asked."""
            size = super().recv_into(buffer, *more)
            memoryview(buffer)[size : size + len(pushed)] = pushed
            return size + len(pushed)

    with _client(redis_server) as client:
        client.set("value", b"abc")
        monkeypatch.setattr(f"{__name__}._Socket", Pushing)
        client.connection_pool.disconnect()
        found = read_values(client, [(b"GET", b"value")])

    assert [b"abc"] == found
    assert {bytes} == set(map(type, found))
