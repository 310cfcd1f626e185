"""Being told of a message on a real Redis, without being sent it."""

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
from redis.exceptions import ResponseError

from celery_batch.worker.redis import wakeup
from celery_batch.worker.redis.owner import own_pool
from celery_batch.worker.redis.wakeup import QueueWakeup

LARGE = b"x" * 1_000_000


class Ear:
    """An event loop that hears when it is asked to, and what it has heard."""

    def __init__(self, broker: str) -> None:
        self.connection = Connection(broker)
        channel = self.connection.default_channel
        self.client = Redis(connection_pool=own_pool(channel, 5.0))
        self.client.flushall()
        self.readers: dict[int, tuple[Any, Any]] = {}
        self.rings = 0
        self._soon: SimpleQueue[Any] = SimpleQueue()
        self.broken: list[ResponseError] = []
        self.bells = QueueWakeup(channel, self, self._ring, self.broken.append)

    def add_reader(self, socket: int, hear: Any, key: str) -> None:
        """As a hub does."""
        self.readers[socket] = (hear, key)

    def remove_reader(self, socket: int) -> None:
        """As a hub does."""
        del self.readers[socket]

    def call_soon(self, call: Any, *args: Any) -> None:
        """As a hub does, from any thread."""
        self._soon.put(partial(call, *args))

    def go_on(self) -> None:
        """Do what is to be done next, once there is something."""
        self._soon.get(timeout=5)()

    def arm(self, *keys: str) -> None:
        """Wait at lists, and return when connections are there for it."""
        self.bells.arm(keys)
        while not self.readers:
            self.go_on()

    def _ring(self) -> None:
        self.rings += 1

    def listen(self) -> None:
        """Hear the one bell that is armed."""
        ((hear, key),) = self.readers.values()
        hear(key)

    def sent(self) -> int:
        """Return how many bytes Redis has sent to anybody."""
        return int(self.client.info("stats")["total_net_output_bytes"])


@pytest.fixture
def ear(broker: str) -> Iterator[Ear]:
    """Bells on an empty Redis."""
    ear = Ear(broker)
    yield ear
    ear.bells.close()
    ear.connection.close()


def test_a_bell_does_not_bring_the_message(ear: Ear):
    """A message of a megabyte makes it ring, and stays where it is."""
    before = ear.sent()
    for rings in (1, 2):
        ear.arm("letters")
        ear.client.lpush("letters", LARGE)
        ear.listen()
        assert rings == ear.rings
        assert [LARGE] == ear.client.lrange("letters", 0, -1)[:1]
        ear.client.delete("letters")

    # What `lrange` has shown is all.
    assert ear.sent() - before < 2 * len(LARGE) + 20_000


def test_a_bell_that_rang_for_nothing_tells_why(ear: Ear):
    """An error that a quiet bell cannot tell makes the next one loud, and is heard there."""
    ear.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    try:
        ear.arm("letters")
        ear.listen()
        assert (1, []) == (ear.rings, ear.broken)
        ear.arm("letters")
        ear.listen()
    finally:
        ear.client.execute_command("ACL", "SETUSER", "default", "+blmove")

    assert "blmove" in str(*ear.broken)
    assert {} == ear.readers


def test_a_loud_bell_is_quiet_again_when_it_has_rung(ear: Ear):
    """To have rung for nothing costs one message that is sent twice, not every one."""
    ear.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    ear.arm("letters")
    ear.listen()
    ear.client.execute_command("ACL", "SETUSER", "default", "+blmove")
    received = []
    for _ in range(2):
        before = ear.sent()
        ear.arm("letters")
        ear.client.lpush("letters", LARGE)
        ear.listen()
        received.append(ear.sent() - before > len(LARGE))
        ear.client.delete("letters")

    assert [True, False] == received


@pytest.mark.parametrize("forbidden", ["client", "llen"])
def test_who_may_not_be_quiet_is_loud(ear: Ear, forbidden: str):
    """A user who may neither silence replies nor measure lists is rung for all the same."""
    ear.client.execute_command("ACL", "SETUSER", "default", f"-{forbidden}")
    try:
        ear.arm("letters")
        ear.client.lpush("letters", "a")
        ear.listen()
        ear.arm("letters")
        ear.listen()
    finally:
        ear.client.execute_command("ACL", "SETUSER", "default", f"+{forbidden}")

    assert (2, []) == (ear.rings, ear.broken)
    assert [b"a"] == ear.client.lrange("letters", 0, -1)


def test_who_answers_nevertheless_is_not_taken_for_quiet(ear: Ear, monkeypatch):
    """Behind a proxy that knows no silence each ring is one answer, not three."""
    monkeypatch.setattr(wakeup, "_SILENCE", ("PING",))
    ear.arm("letters")
    ear.listen()
    assert (1, {}) == (ear.rings, ear.readers)

    ear.arm("letters")
    ear.client.lpush("letters", "a")
    ear.listen()
    assert (2, []) == (ear.rings, ear.broken)
    assert not ear.bells._wakeup["letters"].connection.can_read(0)


def connecting(ear: Ear, monkeypatch: pytest.MonkeyPatch, connect: Any) -> None:
    """Have the bells' next connections connect in this way."""
    kind = ear.bells._pool.connection_class
    monkeypatch.setattr(kind, "connect", connect)


def test_connecting_holds_up_no_loop(ear: Ear, monkeypatch: pytest.MonkeyPatch):
    """A Redis that takes long to take connections is connected to on another thread."""
    own, on = ear.bells._pool.connection_class.connect, []

    def connect(connection: Any) -> None:
        on.append(threading.current_thread())
        own(connection)

    connecting(ear, monkeypatch, connect)
    ear.client.lpush("letters", "a")
    on.clear()
    ear.arm("letters")
    ear.listen()

    assert 1 == ear.rings
    assert 1 == len(on)
    assert threading.current_thread() not in on


def test_a_connection_is_asked_for_once(ear: Ear, monkeypatch: pytest.MonkeyPatch):
    """While one is on its way nobody asks for another; one that comes too late is closed."""
    own, go_on, asked = ear.bells._pool.connection_class.connect, threading.Event(), []

    def connect(connection: Any) -> None:
        asked.append(connection)
        go_on.wait(20)
        own(connection)

    connecting(ear, monkeypatch, connect)
    for _ in range(3):
        ear.bells.arm(["letters"])
    ear.bells.close()
    go_on.set()
    ear.go_on()

    assert 1 == len(asked)
    assert {} == ear.readers
    assert not asked[0].is_connected


def test_a_list_that_cannot_be_waited_at_is_tried_again(
    ear: Ear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A Redis with no connection to spare is no reason to lose those that we have."""
    own, refused = ear.bells._pool.connection_class.connect, [1, 2]

    def connect(connection: Any) -> None:
        if refused:
            refused.pop()
            raise RedisConnectionError("max number of clients reached")
        own(connection)

    connecting(ear, monkeypatch, connect)
    for _ in range(2):
        ear.bells.arm(["letters"])
        ear.go_on()
    ear.arm("letters")
    ear.client.lpush("letters", "a")
    ear.listen()

    assert 1 == ear.rings
    assert 1 == caplog.text.count("max number of clients reached")
