"""The settings of a web process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_batch import BatchTask, prepare
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.conftest import need
from tests.services.forked import start
from tests.services.place import eventually
from tests.services.shop import CELERY

#: More than a pool has connections.
CALLERS = 20


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that may be stopped."""
    need(find_redis_server)
    with RedisServer() as server:
        yield server


def test_many_revokes_at_once_outlast_a_broker_that_hangs(server: RedisServer):
    """Threads of a process that has no connection yet do not wait for each other's for ever."""
    with Celery("revokes", broker=server.url, backend=server.url, set_as_current=False) as app:
        prepare(app)
        task = app.task(base=BatchTask, name="echo")(_same)
        threads = [
            threading.Thread(target=_revoke, args=(app, f"call-{n}"), daemon=True)
            for n in range(CALLERS)
        ]
        (process,) = psutil.Process(server.child.pid).children()
        process.suspend()
        try:
            for each in threads:
                each.start()
            time.sleep(0.6)  # how long the server hangs
        finally:
            process.resume()
        for each in threads:
            each.join(20.0)

        assert not any(each.is_alive() for each in threads)
        assert task.delay(1).id


def _same(x: list[int]) -> list[int]:
    return x


def _revoke(app: Celery, task_id: str) -> None:
    with suppress(OperationalError):  # the pool's connections may be taken for too long
        app.control.revoke(task_id)


def test_other_transports_keep_their_options():
    """Options of Redis and RabbitMQ are not passed to a transport that does not know them."""
    with Celery("memory", broker="memory://", set_as_current=False) as app:
        prepare(app)

        assert {} == app.conf.broker_transport_options
        assert 1.0 == app.conf.broker_connection_timeout


PROGRAM = """
import json, os
from celery import Celery, signals
from celery_batch import prepare

app = Celery("impatient")

@signals.worker_init.connect
def urls_are_imported(**_):
    prepare(app)

@signals.worker_ready.connect
def show(**_):
    with open(os.environ["SETTINGS"], "w") as file:
        json.dump([app.conf.broker_connection_timeout, app.conf.broker_transport_options], file)
"""


def test_it_has_no_effect_in_a_worker(server: RedisServer, tmp_path: Path):
    """Django's worker imports the site's URLs; it stays as patient as Celery makes it."""
    (tmp_path / "impatient.py").write_text(PROGRAM)
    line = [CELERY, "-A", "impatient", "worker", "--pool=solo"]
    environ = {
        **os.environ,
        "CELERY_BROKER_URL": server.url,
        "PYTHONPATH": str(tmp_path),
        "SETTINGS": str(tmp_path / "settings.json"),
    }
    with start(line, tmp_path / "worker.log", env=environ):
        found = eventually(lambda: _text(tmp_path / "settings.json"), "a worker that is ready")

    assert "[4, {}]" == found


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
