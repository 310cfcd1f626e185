"""The settings of a web process."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from celery import Celery, current_app
from celery._state import get_current_app
from celery.app.defaults import DEFAULTS
from kombu.exceptions import OperationalError

from celery_batch import BatchTask, ConfigurationError, prepare
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.conftest import need
from tests.services.forked import start
from tests.services.setup import CELERY
from tests.services.shared_setup import eventually

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
from celery_batch import BatchTask, ConfigurationError, prepare

app = Celery("impatient")

@app.task(base=BatchTask)
def double(numbers):
    return [2 * each for each in numbers]

def urls_are_imported(**_):
    prepare(app)

if os.environ["IMPORTED"] == "with its app":
    urls_are_imported()
    urls_are_imported()
else:
    signals.worker_init.connect(urls_are_imported)

@signals.worker_ready.connect
def show(**_):
    names = ("broker_connection_timeout", "broker_transport_options", "redis_socket_timeout")
    policy = app.conf.result_backend_transport_options, app.conf.task_publish_retry_policy
    control = "producer_or_acquire" in vars(app.control.mailbox)
    backend = app.backend.connparams["socket_timeout"], app.backend.retry_policy["max_retries"]
    with open(os.environ["SETTINGS"] + ".new", "w") as file:
        json.dump([*map(app.conf.get, names), *policy, control, *backend], file)
    os.rename(os.environ["SETTINGS"] + ".new", os.environ["SETTINGS"])
"""

#: As Celery has them.
PATIENT = [4, {}, 120.0, {}, DEFAULTS["task_publish_retry_policy"], False, 120.0, 20]


@pytest.mark.parametrize("imported", ["with its app", "later"])
def test_it_has_no_effect_in_a_worker(server: RedisServer, tmp_path: Path, imported: str):
    """A worker may import the web app: it stays as patient as Celery makes it."""
    (tmp_path / "impatient.py").write_text(PROGRAM)
    line = [CELERY, "-A", "impatient", "worker", "--pool=solo"]
    environ = {
        **os.environ,
        "CELERY_BROKER_URL": server.url,
        "CELERY_RESULT_BACKEND": server.url,
        "IMPORTED": imported,
        "PYTHONPATH": str(tmp_path),
        "SETTINGS": str(tmp_path / "settings.json"),
    }
    with start(line, tmp_path / "worker.log", env=environ):
        found = eventually(lambda: _text(tmp_path / "settings.json"), "a worker that is ready")

    assert json.loads(found) == PATIENT


@pytest.mark.parametrize("given", ["tasks", _same, None])
def test_anything_but_an_app_is_refused(given: object):
    """A module's name, or a task, is a likely mistake."""
    with pytest.raises(ConfigurationError, match="takes a Celery app, got "):
        prepare(given)


def test_the_current_app_may_be_given():
    """Celery's `current_app` stands for it."""
    before = get_current_app()
    with Celery("current", broker="memory://") as app:
        try:
            prepare(current_app)
            assert 1.0 == app.conf.broker_connection_timeout
        finally:
            before.set_current()


def test_no_function_is_among_the_options_of_redis():
    """Replies of a worker in the same process, as in tests, hold them."""
    with Celery("redis", broker="redis://localhost:1", set_as_current=False) as app:
        prepare(app)

        assert json.dumps(app.conf.broker_transport_options)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
