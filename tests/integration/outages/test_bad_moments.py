"""A worker that is told to quit at a bad moment ends all the same, and loses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.services.launcher import Launcher

APP = "tests.apps.interrupted"


@pytest.fixture
def launcher(redis_server: RedisServer, tmp_path: Path) -> Iterator[Launcher]:
    """An empty Redis, and workers that end with the test."""
    with Launcher(redis_server, tmp_path) as launcher:
        yield launcher


#: The moment is in code that all pools share.
_OTHER = pytest.mark.thorough("quits at a bad moment on another pool")


@pytest.mark.parametrize(
    ("moment", "pool"),
    [
        ("deciding", "prefork"),
        pytest.param("deciding", "threads", marks=_OTHER),
        pytest.param("queueing", "prefork", marks=_OTHER),
        ("queueing", "threads"),
        ("reading", "prefork"),
        ("logging", "threads"),
    ],
)
def test_quits_at_a_bad_moment(launcher: Launcher, moment: str, pool: str):
    """Whatever it holds or has half read, it ends, and the next one does exactly the rest."""
    conf = {"worker_soft_shutdown_timeout": 4.0}
    first = launcher.worker(APP, "-c", "2", "-P", pool, conf=conf, QUIT_WHILE=moment)
    client = launcher.client()
    results = [client.send_task("interrupted.slow", (n,)) for n in range(60)]
    launcher.await_facts("told", 1)
    ended = first.wait(60)
    launcher.worker(APP, "-c", "2", conf=conf)

    assert ended, first.tail()
    assert list(range(60)) == [result.get(timeout=60) for result in results]
    assert {1} == set(Counter(launcher.facts("ran")).values())
