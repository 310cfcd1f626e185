"""Dead letters are kept when that can be done, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_batch import MessageRefused, PoisonItem
from celery_batch.processes.redis_server import RedisServer
from tests.services.hostile import encoded, valid
from tests.services.setup import Setup, emptied, open_setup
from tests.services.shared_setup import eventually


@pytest.fixture
def elsewhere() -> Iterator[RedisServer]:
    """Another Redis, to which the worker publishes."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def letters(elsewhere: RedisServer) -> Iterator[redis.Redis]:
    """A client of it."""
    with redis.Redis(unix_socket_path=str(elsewhere.directory / "redis.sock")) as client:
        yield client


@pytest.fixture
def setup(redis_server: RedisServer, elsewhere: RedisServer, tmp_path: Path) -> Iterator[Setup]:
    """The tests' app and a worker, whose dead letters go to the other Redis."""
    conf = {"broker_write_url": elsewhere.url, "batch_dead_letter_queue": "dead"}
    with open_setup(emptied(redis_server), tmp_path) as setup:
        # Celery's event loop would stand still in a heartbeat that is not accepted.
        setup.launch("-c", "1", "--without-heartbeat", conf=conf)  # answers pings elsewhere, too
        assert 2 == setup.double.delay(1).get(timeout=60)
        yield setup


def test_letters_that_cannot_be_kept_hold_up_no_messages(setup: Setup, letters: redis.Redis):
    """A worker refuses, tells the callers, and answers others, while no letter can be written."""
    letters.client_pause(120_000, all=False)
    refused = [valid(retries="many") for _ in range(3)]
    with setup.memory() as broker:
        broker.lpush("celery", b"no message", *map(encoded, refused))
        answers = [each.get(timeout=30) for each in setup.double.delay_many(range(50))]
        for message in refused:
            with pytest.raises(MessageRefused):
                setup.app.AsyncResult(message["headers"]["id"]).get(timeout=30)
        held = lambda: broker.hlen("unacked")  # noqa: E731
        eventually(lambda: held() == 3, "the broker to hold what has a tag")
        letters.execute_command("CLIENT", "UNPAUSE")
        eventually(lambda: letters.llen("dead") == 4, "four letters")
        eventually(lambda: not held(), "the broker to let go of them")

    assert [2 * n for n in range(50)] == answers


def test_the_caller_of_a_poisonous_item_does_not_wait_for_the_letter(
    setup: Setup, letters: redis.Redis
):
    """Who sent it hears at once, and the broker holds its message until the letter is written."""
    letters.client_pause(120_000, all=False)
    poison = setup.deadly.delay("exit")
    with pytest.raises(PoisonItem):
        poison.get(timeout=60)
    with setup.memory() as broker:
        assert 42 == setup.double.delay(21).get(timeout=30)
        eventually(lambda: broker.hlen("unacked") == 1, "the broker to hold it alone")
        letters.execute_command("CLIENT", "UNPAUSE")
        eventually(lambda: letters.llen("dead") == 1, "the letter")
        eventually(lambda: not broker.hlen("unacked"), "the broker to let go of it")

    assert "FAILURE" == poison.state
