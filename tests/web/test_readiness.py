"""What a readiness probe is told."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask, Readiness, areadiness, readiness
from celery_batch.errors import ConfigurationError
from tests.services.forked import start
from tests.services.servers.ports import quiet_port
from tests.services.setup import CELERY, Setup
from tests.services.shared_setup import eventually

#: A worker on folders for a broker.
PROGRAM = """
import os
from celery import Celery
from celery_batch import BatchTask

app = Celery("filed", broker="filesystem://")
queues = os.environ["FOLDER"] + "/queues"
app.conf.broker_transport_options = {
    "data_folder_in": queues,
    "data_folder_out": queues,
    "control_folder": os.environ["FOLDER"] + "/control",
}

@app.task(base=BatchTask, name="same")
def same(x):
    return x
"""


def _in_loop(*args: Any, **options: Any) -> Readiness:
    """Call `areadiness` in an event loop of its own."""
    return asyncio.run(areadiness(*args, **options))


@pytest.fixture(params=[readiness, _in_loop], ids=["readiness", "areadiness"])
def probe(request: pytest.FixtureRequest) -> Callable[..., Readiness]:
    """Both of the two, called in the same way."""
    return request.param


def test_tasks_that_nobody_serves_are_named(each_setup: Setup, probe: Callable[..., Readiness]):
    """A worker is there for one of two tasks, and later for none; on both brokers."""
    tasks = [each_setup.double, "shop.elsewhere"]
    before = probe(each_setup.app, tasks, timeout=30)
    worker = each_setup.worker("-c", "1")
    eventually(lambda: probe(each_setup.app, [each_setup.double]).is_ready, "a worker")
    one_of_two = probe(each_setup.app, tasks, timeout=30)
    worker.stop()
    eventually(lambda: not probe(each_setup.app, [each_setup.double]).is_ready, "nobody")

    assert (False, {"shop.double", "shop.elsewhere"}) == (before.is_ready, set(before.reasons))
    assert {"shop.elsewhere"} == set(one_of_two.reasons)
    assert "no worker" in one_of_two.reasons["shop.elsewhere"]


def test_workers_of_other_brokers_are_asked(tmp_path: Path, probe: Callable[..., Readiness]):
    """On a broker that cannot say who consumes, within the default time-out."""
    (tmp_path / "filed.py").write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "FOLDER": str(tmp_path)}
    line = [CELERY, "-A", "filed", "worker", "--pool=solo"]
    with Celery("filed", broker="filesystem://", set_as_current=False) as app:
        app.conf.broker_transport_options = {
            "data_folder_in": str(tmp_path / "queues"),
            "data_folder_out": str(tmp_path / "queues"),
            "control_folder": str(tmp_path / "control"),
        }
        (tmp_path / "queues").mkdir()
        task = app.task(base=BatchTask, name="same")(_same)
        before = probe(app, [task])
        with start(line, tmp_path / "worker.log", env=environ):
            eventually(lambda: probe(app, [task]).is_ready, "a worker")

    assert ["same"] == [*before.reasons]


def test_a_broker_that_is_away_is_the_reason(
    probe: Callable[..., Readiness], caplog: pytest.LogCaptureFixture
):
    """Once for all tasks, within the time-out; its address is in the log alone."""
    port = quiet_port()
    url = f"redis://127.0.0.1:{port}/0"
    with Celery("adrift", broker=url, set_as_current=False) as app:
        tasks = [app.task(base=BatchTask, name=name)(_same) for name in "ab"]
        began = time.monotonic()
        found = probe(app, tasks, timeout=0.5)
        took = time.monotonic() - began

    assert not found.is_ready
    assert {"broker": "it does not answer"} == found.reasons
    assert "Not ready: a: whether it is served is not known" in caplog.text
    assert str(port) in caplog.text
    assert took < 3


def test_eager_tasks_are_ready(probe: Callable[..., Readiness]):
    """They need no worker."""
    with Celery("eager", set_as_current=False) as app:
        app.conf.task_always_eager = True
        task = app.task(base=BatchTask, name="same")(_same)

        assert Readiness() == probe(app, [task])


def test_only_batch_tasks_are_known(probe: Callable[..., Readiness]):
    """A plain task, and a name that the app has not, are mistakes of the program."""
    with Celery("plain", broker="memory://", set_as_current=False) as app:
        plain = app.task(name="plain")(_same)
        for wrong in (plain, "unknown"):
            with pytest.raises(ConfigurationError, match="is no batch task of plain"):
                probe(app, [wrong])


def _same(x: list[Any]) -> list[Any]:
    """Return each input."""
    return x
