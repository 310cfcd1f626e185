"""Workers of a Redis that is a read-only replica, as one may be for seconds after a failover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from celery_batch.processes.redis_server import RedisServer
from tests.services.servers.ports import quiet_port
from tests.services.setup import Setup, emptied, open_setup
from tests.services.shared_setup import eventually

WORDS = "this Redis is a read-only replica"


@pytest.fixture
def client() -> Iterator[Redis]:
    """A client of a Redis that no other test uses, and that may become a replica."""
    with (
        RedisServer() as server,
        Redis(unix_socket_path=f"{server.directory}/redis.sock") as client,
    ):
        yield client


@pytest.fixture
def replica_setup(client: Redis, redis_server: RedisServer, tmp_path: Path) -> Iterator[Setup]:
    """Broker and results on that Redis."""
    url = f"redis+socket://{client.connection_pool.connection_kwargs['path']}?virtual_host=0"
    with open_setup(url, tmp_path, memory=emptied(redis_server)) as setup:
        yield setup


def demote(client: Redis) -> None:
    """Have it follow another Redis, which is away."""
    client.replicaof("127.0.0.1", quiet_port())


def test_a_worker_waits_for_a_redis_that_takes_messages(replica_setup: Setup, client: Redis):
    """At its start it says why in one line for each try, and goes on by itself."""
    result = replica_setup.double.delay(2)
    demote(client)
    worker = replica_setup.launch("-c", "1")
    eventually(lambda: worker.log.count(WORDS) >= 2, WORDS, timeout=60)
    client.replicaof("NO", "ONE")

    assert 4 == result.get(timeout=60)
    assert "Traceback" not in worker.log
    assert worker.log.count("Cannot connect to") == worker.log.count(WORDS)


def test_a_worker_leaves_a_redis_that_becomes_a_replica(replica_setup: Setup, client: Redis):
    """It connects anew, as the address may lead to another Redis by now; nothing is lost."""
    worker = replica_setup.worker("-c", "1", TESTS_NAP_SECONDS="2")
    results = [replica_setup.nap.delay(number) for number in range(12)]
    eventually(lambda: replica_setup.recall("nap"), "a batch", timeout=60)
    demote(client)
    eventually(lambda: WORDS in worker.log, WORDS, timeout=60)
    client.replicaof("NO", "ONE")

    assert list(range(12)) == [each.get(timeout=60) for each in results]
    assert worker.child.exit_code is None


def test_a_worker_that_waits_for_it_can_be_stopped(replica_setup: Setup, client: Redis):
    """SIGTERM ends it before the next try."""
    demote(client)
    worker = replica_setup.launch("-c", "1")
    eventually(lambda: WORDS in worker.log, WORDS, timeout=60)

    assert 0 == worker.stop(grace=20)
