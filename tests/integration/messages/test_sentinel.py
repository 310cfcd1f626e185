"""The message path where Redis is found through a Sentinel, or another takes its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from kombu.exceptions import OperationalError

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.services.servers.ports import quiet_port
from tests.services.setup import Setup, Worker, emptied, open_setup


def launch(folder: Path, name: str, *options: str) -> tuple[ManagedProcess, int]:
    """Start a server of Redis' program and return it, with its port, when it answers."""
    port = quiet_port()
    (folder / name).mkdir()
    own = ("--port", str(port), "--dir", str(folder / name))
    child = ManagedProcess(
        [find_redis_server(), *options, *own, "--bind", "127.0.0.1"],
        folder / f"{name}.log",
    )

    def silent() -> str:
        try:
            with redis.Redis(port=port) as client:
                client.ping()
        except redis.ConnectionError as error:
            return str(error)
        return ""

    wait_until(silent, [child], what=name, timeout=60)
    return child, port


class Watched:
    """A Redis with a replica, both with a Sentinel that replaces the one by the other."""

    def __init__(self, folder: Path) -> None:
        self.main, self._port = launch(folder, "main", "--save", "")
        follows = ("--save", "", "--replicaof", "127.0.0.1", str(self._port))
        replica, self.replicas_port = launch(folder, "replica", *follows)
        wait_until(self._why_not_followed, [self.main], what="the replica", timeout=60)
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {self._port} 1\n"
            # On a busy machine a Redis that runs may say nothing for seconds.
            "sentinel down-after-milliseconds main 5000\n"
        )
        sentinel, self._sentinels_port = launch(folder, "sentinel", str(config), "--sentinel")
        wait_until(self._why_unknown, [sentinel], what="the sentinel", timeout=60)
        self._children = [sentinel, replica, self.main]

    @property
    def url(self) -> str:
        """Where Celery finds the Sentinel."""
        return f"sentinel://127.0.0.1:{self._sentinels_port}/0"

    @property
    def port_of_main(self) -> int:
        """Where the Sentinel says that the Redis is."""
        with redis.Redis(port=self._sentinels_port) as client:
            return client.sentinel_get_master_addr_by_name("main")[1]

    def replicate(self) -> None:
        """Return when the replica has all that was written so far."""
        with redis.Redis(port=self._port) as client:
            assert 1 == client.wait(1, 60_000)

    def _why_not_followed(self) -> str:
        with redis.Redis(port=self.replicas_port) as client:
            return "" if client.info("replication")["master_link_status"] == "up" else "no link"

    def _why_unknown(self) -> str:
        with redis.Redis(port=self._sentinels_port) as client:
            return "" if client.sentinel_slaves("main") else "knows no replica"

    def close(self) -> None:
        """Stop what still runs."""
        for child in self._children:
            child.stop(5)


@pytest.fixture
def watched(redis_server: RedisServer, tmp_path: Path) -> Iterator[Watched]:  # noqa: ARG001 (skips without Redis)
    """A Redis that a Sentinel looks after."""
    watched = Watched(tmp_path)
    yield watched
    watched.close()


@contextmanager
def through(watched: Watched, folder: Path, memory: str) -> Iterator[tuple[Setup, Worker]]:
    """Have the tests' app and a worker on a Redis that is found through a Sentinel."""
    named = {"master_name": "main"}
    conf = {"broker_transport_options": named, "result_backend_transport_options": named}
    with open_setup(watched.url, folder, memory=memory) as setup:
        setup.app.conf.update(conf)
        yield setup, setup.worker("-c", "1", conf=conf, TESTS_NAP_SECONDS="0.3")


def test_bulk_path_through_a_sentinel(watched: Watched, redis_server: RedisServer, tmp_path: Path):
    """Messages are leased, answered and acknowledged as on a Redis of its own."""
    with through(watched, tmp_path, emptied(redis_server)) as (setup, worker):
        results = [setup.double.delay(n) for n in range(40)]

        assert [2 * n for n in range(40)] == [result.get(timeout=30) for result in results]
        with redis.Redis(port=watched.port_of_main) as client:
            assert 1 == client.zcard("unacked_due")
            unsettled = lambda: str(client.hlen("unacked") or "")  # noqa: E731
            wait_until(unsettled, [worker.child], what="nothing unacknowledged", timeout=60)


def send(setup: Setup, numbers: Iterable[int]) -> list[Any]:
    """Call a task for each number, again as long as the broker cannot be reached."""
    results = []
    for number in numbers:
        while len(results) <= number - numbers[0]:
            with suppress(OperationalError):
                results.append(setup.double.delay(number))
    return results


def test_a_replica_takes_over_under_load(
    watched: Watched, redis_server: RedisServer, tmp_path: Path
):
    """Killed with requests that wait and run: all that the replica has are answered."""
    with through(watched, tmp_path, emptied(redis_server)) as (setup, worker):
        results = [setup.nap.delay(n) for n in range(100)]
        results[0].get(timeout=30)
        watched.replicate()
        waits = not results[-1].ready()
        os.kill(psutil.Process(watched.main.pid).children()[0].pid, signal.SIGKILL)
        later = send(setup, range(50))
        answers = [result.get(timeout=60) for result in later]
        napped = [result.get(timeout=60) for result in results]
        code = worker.stop()

    assert waits
    assert [2 * n for n in range(50)] == answers
    assert list(range(100)) == napped
    assert 0 == code


def test_the_next_of_several_brokers_takes_over(redis_server: RedisServer, tmp_path: Path):
    """Of two that share nothing callers and workers go on with the second."""
    with (
        RedisServer(port=quiet_port()) as first,
        RedisServer(port=quiet_port()) as second,
        open_setup(f"{first.url};{second.url}", tmp_path, backend=emptied(redis_server)) as setup,
    ):
        worker = setup.worker("-c", "1")
        before = [result.get(timeout=30) for result in send(setup, range(20))]
        first.stop()
        after = [result.get(timeout=60) for result in send(setup, range(20, 70))]
        code = worker.stop()

    assert [2 * n for n in range(70)] == before + after
    assert 0 == code
