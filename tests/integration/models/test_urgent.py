"""What is urgent runs next, whatever lies ready; seen by the order in which models run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.apps.small_app import go_on
from tests.services.launcher import Launcher, pool_process

SOON = 40.0

#: As Redis counts: 0 is most urgent.
URGENT, PATIENT = 0, 9

#: Bytes of a request that are written to the pool process only as it reads them.
_MORE_THAN_A_PIPE = 200_000


@pytest.fixture
def fresh(redis_server: RedisServer, tmp_path: Path) -> Iterator[Launcher]:
    """Nobody has been anywhere, and the worker ends with the test."""
    with Launcher(redis_server, tmp_path) as launcher:
        yield launcher


def send(
    client: Any, name: str, *, priority: int, items: int = 2, waits: dict[str, Any] | None = None
) -> list[Any]:
    """Send items of one name; two are a full batch."""
    return [
        client.send_task("overlapped.watched", ([name, waits or {}],), priority=priority)
        for _ in range(items)
    ]


def wait_for(launcher: Launcher, place: str) -> None:
    """Return when somebody has been at this place."""
    there = lambda: launcher.redis.sismember("stage:places", place)  # noqa: E731
    wait_until(lambda: "" if there() else "nobody yet", [], what=place, timeout=SOON)


def test_urgent_batch_runs_before_the_one_that_lies_ready(fresh: Launcher):
    """Its model is next, and its other place is a patient one's; nobody waits for company."""
    client = fresh.client()
    results = send(client, "a", priority=PATIENT, waits={"running": ["go"]})
    for name in "bcd":  # more than the prefetch lets in
        results += send(client, name, priority=PATIENT)
    fresh.worker("tests.apps.overlapped", "-c", "1")
    wait_for(fresh, "a running")
    wait_for(fresh, "b entered")
    results += send(client, "u", priority=URGENT, items=1)
    wait_for(fresh, "u entered")
    go_on(fresh.redis, "go")

    assert list("aabbccddu") == [result.get(timeout=SOON) for result in results]
    assert list("aubcd") == [name for name, *_ in fresh.facts("ran")]


@pytest.mark.parametrize(("broker", "urgent", "patient"), [("redis", 0, 9), ("rabbitmq", 9, 0)])
def test_urgent_batch_overtakes_behind_a_lone_batch(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path: Path,
    broker: str,
    urgent: int,
    patient: int,
):
    """The main thread has the lone batch to itself, but others read what comes meanwhile."""
    url = request.getfixturevalue("rabbitmq_server").url if broker == "rabbitmq" else ""
    conf = {"task_queue_max_priority": 10}  # RabbitMQ needs it, Redis has priorities anyway
    with Launcher(redis_server, tmp_path, broker=url) as launcher:
        launcher.worker("tests.apps.overlapped", "-c", "1", conf=conf)
        client = launcher.client(**conf)
        results = send(client, "a", priority=patient, items=1, waits={"running": ["go"]})
        wait_for(launcher, "a running")
        results += send(client, "b", priority=patient, waits={"unused": "x" * _MORE_THAN_A_PIPE})
        wait_for(launcher, "b entered")
        results += send(client, "u", priority=urgent)
        wait_for(launcher, "u entered")
        go_on(launcher.redis, "go")

        assert list("abbuu") == [result.get(timeout=SOON) for result in results]
        assert list("aub") == [name for name, *_ in launcher.facts("ran")]
        assert ["a", True, "models"] in launcher.facts("finished")


def test_patient_ones_have_their_share_of_a_crowd(fresh: Launcher):
    """Though there are always more urgent ones in the broker, a quarter of all is for the rest."""
    client = fresh.client()
    results = send(client, "u", priority=URGENT, items=60)
    results += send(client, "p", priority=PATIENT, items=8)
    results += send(client, "q", priority=3, items=4)
    fresh.worker("tests.apps.overlapped", "-c", "1", conf={"batch_low_priority_share": 0.25})
    for result in results:
        result.get(timeout=SOON)
    order = "".join(name for name, *_ in fresh.facts("finished"))

    assert {"u": 60, "p": 8, "q": 4} == Counter(order)
    assert "u" * 6 == order[-6:]
    assert "p" in order[:30]


def test_process_killed_while_one_is_overtaken(fresh: Launcher):
    """What lay ready in it, and what had overtaken that, runs once, in the next process."""
    client = fresh.client()
    results = send(client, "a", priority=PATIENT, waits={"running": ["go"]})
    results += send(client, "b", priority=PATIENT)
    worker = fresh.worker("tests.apps.overlapped", "-c", "1")
    wait_for(fresh, "a running")
    wait_for(fresh, "b entered")
    results += send(client, "u", priority=URGENT)
    wait_for(fresh, "u entered")
    pool_process(worker).kill()
    go_on(fresh.redis, "go")

    assert list("aabbuu") == [result.get(timeout=SOON) for result in results]
    assert {"a": 2, "b": 1, "u": 1} == Counter(name for name, *_ in fresh.facts("ran"))
