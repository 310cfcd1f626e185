"""Being told of a message on a real Redis, without being sent it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection
from redis import Redis
from redis.exceptions import ResponseError

from celery_batch.worker import redis_bells
from celery_batch.worker.redis_bells import Bells
from celery_batch.worker.redis_owner import own_pool

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
        self.broken: list[ResponseError] = []
        self.bells = Bells(channel, self, self._ring, self.broken.append)

    def add_reader(self, socket: int, hear: Any, key: str) -> None:
        """As a hub does."""
        self.readers[socket] = (hear, key)

    def remove_reader(self, socket: int) -> None:
        """As a hub does."""
        del self.readers[socket]

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
        ear.bells.arm(["letters"])
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
        ear.bells.arm(["letters"])
        ear.listen()
        assert (1, []) == (ear.rings, ear.broken)
        ear.bells.arm(["letters"])
        ear.listen()
    finally:
        ear.client.execute_command("ACL", "SETUSER", "default", "+blmove")

    assert "blmove" in str(*ear.broken)
    assert {} == ear.readers


def test_a_loud_bell_is_quiet_again_when_it_has_rung(ear: Ear):
    """To have rung for nothing costs one message that is sent twice, not every one."""
    ear.client.execute_command("ACL", "SETUSER", "default", "-blmove")
    ear.bells.arm(["letters"])
    ear.listen()
    ear.client.execute_command("ACL", "SETUSER", "default", "+blmove")
    received = []
    for _ in range(2):
        before = ear.sent()
        ear.bells.arm(["letters"])
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
        ear.bells.arm(["letters"])
        ear.client.lpush("letters", "a")
        ear.listen()
        ear.bells.arm(["letters"])
        ear.listen()
    finally:
        ear.client.execute_command("ACL", "SETUSER", "default", f"+{forbidden}")

    assert (2, []) == (ear.rings, ear.broken)
    assert [b"a"] == ear.client.lrange("letters", 0, -1)


def test_who_answers_nevertheless_is_not_taken_for_quiet(ear: Ear, monkeypatch):
    """Behind a proxy that knows no silence each ring is one answer, not three."""
    monkeypatch.setattr(redis_bells, "_SILENCE", ("PING",))
    ear.bells.arm(["letters"])
    ear.listen()
    assert (1, {}) == (ear.rings, ear.readers)

    ear.bells.arm(["letters"])
    ear.client.lpush("letters", "a")
    ear.listen()
    assert (2, []) == (ear.rings, ear.broken)
    assert not ear.bells._bells["letters"].connection.can_read(0)
