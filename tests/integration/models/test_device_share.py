"""Several models in one worker: the device is shared by time, and none waits for a backlog."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.apps.small_app import go_on
from tests.integration.models.test_urgent import SOON, wait_for
from tests.services.launcher import Launcher
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.servers.slow_link import slow_link


@pytest.fixture
def fresh(redis_server: RedisServer, tmp_path: Path) -> Iterator[Launcher]:
    """Nobody has been anywhere, and the worker ends with the test."""
    with Launcher(redis_server, tmp_path) as launcher:
        yield launcher


@pytest.fixture
def over_rabbitmq(
    redis_server: RedisServer, rabbitmq_server: RabbitMQServer, tmp_path: Path
) -> Iterator[Launcher]:
    """The same with RabbitMQ for a broker."""
    with Launcher(redis_server, tmp_path, broker=rabbitmq_server.url) as launcher:
        yield launcher


def test_a_batch_of_another_task_runs_before_the_one_that_is_ready(fresh: Launcher):
    """It is no more urgent, but its task has had less of the device."""
    client = fresh.client()
    results = [
        client.send_task("overlapped.watched", ([name, {"running": ["go"]}],))
        for name in "aabbccdd"
    ]
    fresh.worker("tests.apps.overlapped", "-c", "1", "-Q", f"{fresh.queue},other")
    wait_for(fresh, "a running")
    wait_for(fresh, "b entered")
    results.append(client.send_task("overlapped.other", (["o", {}],), queue="other"))
    wait_for(fresh, "o entered")
    go_on(fresh.redis, "go")

    assert list("aabbccddo") == [result.get(timeout=SOON) for result in results]
    assert list("aobcd") == [name for name, *_ in fresh.facts("ran")]


@pytest.mark.parametrize(
    ("pool", "processes"),
    [
        ("prefork", 1),
        ("threads", 1),
        *(
            pytest.param(
                *where, marks=pytest.mark.thorough("a backlog on solo and on two processes")
            )
            for where in (("prefork", 2), ("solo", 1))
        ),
    ],
)
def test_a_request_waits_for_no_backlog_of_another_task(fresh: Launcher, pool: str, processes: int):
    """On any pool it runs after the batches that run when it comes, and one more at most."""
    wait_for_no_backlog(fresh, pool, processes)


def test_a_request_waits_for_no_backlog_over_rabbitmq(over_rabbitmq: Launcher):
    """Its queue has a prefetch of its own."""
    wait_for_no_backlog(over_rabbitmq, "prefork", 1)


def test_a_request_waits_for_no_backlog_behind_a_slow_redis(
    fresh: Launcher, redis_server: RedisServer
):
    """The worker asks for messages after each batch, and waits for the reply."""
    with slow_link(redis_server.directory / "redis.sock", delay=0.02) as port:
        wait_for_no_backlog(fresh, "solo", 1, more=0, broker=f"redis://127.0.0.1:{port}/0")


def wait_for_no_backlog(
    fresh: Launcher, pool: str, processes: int, more: int = 1, broker: str = ""
) -> None:
    """Send a request of one task while another has a backlog; so many more batches may run."""
    client = fresh.client()
    other = partial(client.send_task, "overlapped.other", (["o", {}],), queue="other")
    first = other()
    results = [
        client.send_task("overlapped.watched", (["l", {"seconds": 0.3}],))
        for _ in range(16 + 8 * processes)
    ]
    options = ("-P", pool, "-c", str(processes), "-Q", f"{fresh.queue},other")
    broker = broker or fresh.broker
    worker = fresh.worker("tests.apps.overlapped", *options, CELERY_BROKER_URL=broker)
    first.get(timeout=SOON)
    fresh.await_facts("ran", 1 + 2 * processes)
    second = other()
    # It has left its queue earlier, and a busy machine may run a batch in between.
    missing = lambda: "" if f"{second.id}] received" in worker.log.read_text() else "not read"  # noqa: E731
    wait_until(missing, [worker], what="request", timeout=SOON)
    before = len(fresh.facts("ran"))
    second.get(timeout=SOON)
    places = [place for place, (name, *_) in enumerate(fresh.facts("ran")) if name == "o"]

    assert places[1] - before <= processes + more
    assert ["l"] * len(results) == [result.get(timeout=SOON) for result in results]
