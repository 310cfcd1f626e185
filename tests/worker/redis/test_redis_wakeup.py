"""Waiting for messages on a real Redis, without receiving them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest
from kombu import Connection
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_batch.worker.redis import wakeup
from celery_batch.worker.redis.owner import own_pool
from celery_batch.worker.redis.wakeup import QueueWakeup

LARGE = b"x" * 1_000_000


class Loop:
    """An event loop that is run step by step, and counts wakeups."""

    def __init__(self, broker: str) -> None:
        self.connection = Connection(broker)
        channel = self.connection.default_channel
        self.client = Redis(connection_pool=own_pool(channel, 5.0))
        self.client.flushall()
        self.readers: dict[int, tuple[Any, Any]] = {}
        self.wakeups = 0
        self._soon: SimpleQueue[Any] = SimpleQueue()
        self.wakeup = QueueWakeup(channel, self, self._wake)

    def add_reader(self, socket: int, receive: Any, key: str) -> None:
        """As a hub does."""
        self.readers[socket] = (receive, key)

    def remove_reader(self, socket: int) -> None:
        """As a hub does."""
        del self.readers[socket]

    def call_soon(self, call: Any, *args: Any) -> None:
        """As a hub does, from any thread."""
        self._soon.put(partial(call, *args))

    def run_next(self) -> None:
        """Run the next callback, once there is one."""
        self._soon.get(timeout=60)()

    def wait(self, *keys: str) -> None:
        """Wait for messages in lists, and return when a connection is ready."""
        self.wakeup.wait(keys)
        while not self.readers:
            self.run_next()

    def _wake(self) -> None:
        self.wakeups += 1

    def receive(self) -> None:
        """Handle the reply of the only connection."""
        ((receive, key),) = self.readers.values()
        receive(key)

    def sent(self) -> int:
        """Return how many bytes Redis has sent."""
        return int(self.client.info("stats")["total_net_output_bytes"])


@pytest.fixture
def loop(broker: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """A loop on an empty Redis, whose connections are made at once after a failure."""
    monkeypatch.setattr(wakeup, "_PAUSE", 0.0)
    loop = Loop(broker)
    yield loop
    loop.wakeup.close()
    loop.connection.close()


def test_a_wakeup_does_not_bring_the_message(loop: Loop):
    """A message of a megabyte wakes the loop, and stays in its list."""
    before = loop.sent()
    for wakeups in (1, 2):
        loop.wait("letters")
        loop.client.lpush("letters", LARGE)
        loop.receive()
        assert wakeups == loop.wakeups
        assert [LARGE] == loop.client.lrange("letters", 0, -1)[:1]
        loop.client.delete("letters")

    # `lrange` alone sends the message.
    assert loop.sent() - before < 2 * len(LARGE) + 20_000


def test_an_early_wakeup_shows_the_error_next_time(loop: Loop):
    """An error of BLMOVE whose reply is skipped is read with the next reply, and wakes nobody."""
    loop.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    try:
        loop.wait("letters")
        loop.receive()
        assert 1 == loop.wakeups
        loop.wait("letters")
        loop.receive()
    finally:
        loop.client.execute_command("ACL", "SETUSER", "default", "+blmove")

    assert (1, {}) == (loop.wakeups, loop.readers)


def test_a_missing_right_is_named_once(loop: Loop, caplog: pytest.LogCaptureFixture):
    """The log says what an idle worker waits for in vain, and not each second."""
    loop.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    try:
        for _ in range(4):
            loop.wait("letters")
            loop.receive()
    finally:
        loop.client.execute_command("ACL", "SETUSER", "default", "+blmove")

    assert 1 == caplog.text.count("Redis does not allow BLMOVE (")
    assert "looks for messages once a second" in caplog.text


def test_replies_are_skipped_again_after_one(loop: Loop):
    """After an early wakeup one message is sent twice, not every one."""
    loop.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    loop.wait("letters")
    loop.receive()
    loop.client.execute_command("ACL", "SETUSER", "default", "+blmove")
    received = []
    for _ in range(2):
        before = loop.sent()
        loop.wait("letters")
        loop.client.lpush("letters", LARGE)
        loop.receive()
        received.append(loop.sent() - before > len(LARGE))
        loop.client.delete("letters")

    assert [True, False] == received


@pytest.mark.parametrize("forbidden", ["client", "llen"])
def test_without_permission_to_skip_replies_they_are_read(loop: Loop, forbidden: str):
    """A user who may not skip replies, or read the length of lists, is woken all the same."""
    loop.client.execute_command("ACL", "SETUSER", "default", f"-{forbidden}")
    try:
        loop.wait("letters")
        loop.client.lpush("letters", "a")
        loop.receive()
        loop.wait("letters")
        loop.receive()
    finally:
        loop.client.execute_command("ACL", "SETUSER", "default", f"+{forbidden}")

    assert 2 == loop.wakeups
    assert [b"a"] == loop.client.lrange("letters", 0, -1)


def test_a_proxy_that_skips_no_replies_is_noticed(loop: Loop, monkeypatch):
    """Behind a proxy that sends skipped replies, each wakeup is one reply, not three."""
    monkeypatch.setattr(wakeup, "_SKIP_REPLY", ("PING",))
    loop.wait("letters")
    loop.receive()
    assert (1, {}) == (loop.wakeups, loop.readers)

    loop.wait("letters")
    loop.client.lpush("letters", "a")
    loop.receive()
    assert 2 == loop.wakeups
    assert not loop.wakeup._waits["letters"].connection.can_read(0)


def connecting(loop: Loop, monkeypatch: pytest.MonkeyPatch, connect: Any) -> None:
    """Replace the method with which the next connections connect."""
    kind = loop.wakeup._pool.connection_class
    monkeypatch.setattr(kind, "connect", connect)


def test_connecting_does_not_block_the_loop(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    """Connections are made on another thread, as that may take long."""
    own, on = loop.wakeup._pool.connection_class.connect, []

    def connect(connection: Any) -> None:
        on.append(threading.current_thread())
        own(connection)

    connecting(loop, monkeypatch, connect)
    loop.client.lpush("letters", "a")
    on.clear()
    loop.wait("letters")
    loop.receive()

    assert 1 == loop.wakeups
    assert 1 == len(on)
    assert threading.current_thread() not in on


def test_a_connection_is_made_once(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    """While one is being made there is no other; one that comes too late is closed."""
    own, go_on, asked = loop.wakeup._pool.connection_class.connect, threading.Event(), []

    def connect(connection: Any) -> None:
        asked.append(connection)
        go_on.wait(20)
        own(connection)

    connecting(loop, monkeypatch, connect)
    for _ in range(3):
        loop.wakeup.wait(["letters"])
    loop.wakeup.close()
    go_on.set()
    loop.run_next()

    assert 1 == len(asked)
    assert {} == loop.readers
    assert asked[0]._sock is None


def test_a_failed_connection_is_tried_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A Redis with no connection to spare does not end the connection of the worker."""
    own, refused = loop.wakeup._pool.connection_class.connect, [1, 2]

    def connect(connection: Any) -> None:
        if refused:
            refused.pop()
            raise RedisConnectionError("max number of clients reached")
        own(connection)

    connecting(loop, monkeypatch, connect)
    for _ in range(2):
        loop.wakeup.wait(["letters"])
        loop.run_next()
    loop.wait("letters")
    loop.client.lpush("letters", "a")
    loop.receive()

    assert 1 == loop.wakeups
    assert 1 == caplog.text.count("max number of clients reached")


def test_few_connections_wait_for_many_lists(loop: Loop):
    """The first lists have one each, and keep it; Redis has connections left for others."""
    keys = [f"letters{number}" for number in range(100)]
    for _ in range(3):
        loop.wakeup.wait(keys)
        while len(loop.readers) < 32:
            loop.run_next()

    assert sorted(keys[:32]) == sorted(key for _, key in loop.readers.values())


def test_a_refused_connection_brings_longer_and_longer_pauses(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A Redis with no connection to spare is asked for one, after 1, 2, 4 ... seconds."""
    now, asked = [1000.0], []

    def connect(_connection: Any) -> None:
        asked.append(now[0])
        raise RedisConnectionError("max number of clients reached")

    connecting(loop, monkeypatch, connect)
    monkeypatch.setattr(wakeup, "boottime", lambda: now[0])
    monkeypatch.setattr(wakeup, "_PAUSE", 1.0)
    for _ in range(100):
        before = len(asked)
        loop.wakeup.wait(["letters", "more"])
        if loop.wakeup._connecting:
            loop.run_next()
        assert len(asked) <= before + 1
        now[0] += 1.0

    assert [0, 1, 3, 7, 15, 31, 61, 91] == [at - 1000 for at in asked]
    assert 1 == caplog.text.count("max number of clients reached")
