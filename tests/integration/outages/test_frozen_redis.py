"""A Redis that is stopped, and keeps its connections open, keeps no worker from ending."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.setup import Setup, open_setup

#: Seconds; Redis counts as silent after one, and what runs is given up after three.
LEASE = {"batch_lease": 3.0}


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that no other test uses."""
    with RedisServer() as server:
        yield server


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    """Stop a Redis for a while, as a machine does that is suspended."""
    (process,) = psutil.Process(server.child.pid).children()
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def await_batch(setup: Setup) -> None:
    """Return when a batch runs."""
    wait_until(
        lambda: "" if setup.recall("nap") else "not yet", [], what="the first batch", timeout=60
    )


@pytest.mark.parametrize("before", [True, False], ids=["busy with it", "idle"])
def test_worker_ends_while_redis_is_frozen(own_redis: RedisServer, tmp_path: Path, *, before: bool):
    """SIGTERM ends it, whether or not it was waiting for Redis when it came."""
    with open_setup(own_redis.url, tmp_path) as setup:
        worker = setup.worker("-c", "1", conf=LEASE)
        pid = worker.pid
        with frozen(own_redis):
            if before:  # the lease cannot be renewed: it says so
                silent = lambda: "" if "Cannot renew" in worker.log else "not noticed"  # noqa: E731
                wait_until(silent, [worker.child], what="silence", timeout=60)
            os.kill(pid, signal.SIGTERM)
            has_ended = worker.child.wait(60)

    assert has_ended
    assert "it waits no longer" in worker.log


def test_worker_ends_though_its_results_cannot_be_stored(own_redis: RedisServer, tmp_path: Path):
    """What it ran is run by another worker, when Redis goes on."""
    with open_setup(own_redis.url, tmp_path) as setup:
        worker = setup.worker("-c", "1", conf=LEASE)
        results = [setup.nap.delay(n) for n in range(8)]
        await_batch(setup)
        pid = worker.pid
        with frozen(own_redis):
            os.kill(pid, signal.SIGTERM)
            has_ended = worker.child.wait(60)
        setup.worker("-c", "1", conf=LEASE)
        values = [result.get(timeout=60) for result in results]

    assert has_ended
    assert list(range(8)) == values
