"""Real servers for the tests: a Redis each, workers as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from celery import _state
from celery.app import builtins  # noqa: F401 (registers Celery's own shared tasks)
from kombu import pools

from celery_batch.cli.child import Child, wait_until
from celery_batch.cli.redis_server import RedisServer, find_redis_server
from celery_batch.errors import ConfigurationError

ROOT = Path(__file__).parents[1]
#: Without the second that a worker spends looking for neighbours.
_QUICK = ("-l", "INFO", "--without-mingle", "--without-gossip")

CELERY = str(Path(sys.executable).with_name("celery"))


@pytest.fixture(autouse=True)
def _own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery shares every task with all apps there will be; not from one test to the next."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis of our own; where none is installed, a reason to skip, or under CI to fail."""
    try:
        find_redis_server()
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    with RedisServer() as server:
        yield server


@pytest.fixture
def broker(redis_server: RedisServer) -> Iterator[str]:
    """The URL of an empty Redis."""
    with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as client:
        client.flushall()
    return redis_server.url


@dataclass
class Worker:
    """A worker process of the tests' app, as a user would start it."""

    name: str
    child: Child
    shop: Shop

    def stop(self, grace: float = 30.0) -> int | None:
        """Ask it to stop as a supervisor would, with SIGTERM; return its exit code."""
        self.child.stop(grace)
        return self.child.exit_code

    @property
    def pid(self) -> int:
        """The process id of the worker's main process."""
        (server,) = psutil.Process(self.child.pid).children()
        return server.pid

    @property
    def log(self) -> str:
        """Everything it has said so far."""
        return self.child.log.read_text()

    def status(self) -> dict[str, Any]:
        """Return its answer to ``batch_status``."""
        (reply,) = self.shop.app.control.broadcast(
            "batch_status", reply=True, destination=[self.name], timeout=5.0, limit=1
        )
        return reply[self.name]

    def stats(self) -> dict[str, Any]:
        """Return its answer to ``inspect stats``."""
        return self.shop.app.control.inspect([self.name], timeout=5.0, limit=1).stats()[self.name]

    def why_not_ready(self) -> str:
        """Ask whether it takes tasks; the empty string says yes."""
        pong = self.shop.app.control.ping([self.name], timeout=0.5, limit=1)
        return "" if pong else "does not answer a ping"


class Shop:
    """
    The client side of the tests' app, and its workers.

    Args:
        url: Broker and result backend.
        folder: For the workers' logs.
        module: The tests' app, imported for this broker.
    """

    _names = count(1)

    def __init__(self, url: str, folder: Path, module: Any) -> None:
        self.url = url
        self.folder = folder
        self.module = module
        self.app = module.app
        self._workers: list[Worker] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def launch(self, *options: str, conf: dict[str, Any] | None = None, **env: str) -> Worker:
        """Start a worker without waiting for it; keyword arguments are environment."""
        name = f"w{next(self._names)}@localhost"
        child = Child(
            [CELERY, "-A", "tests.services.tasks", "worker", "-n", name, *_QUICK, *options],
            self.folder / f"{name}.log",
            env={**_environment(self.url), "SHOP_CONF": json.dumps(conf or {}), **env},
        )
        worker = Worker(name, child, self)
        self._workers.append(worker)
        return worker

    def worker(self, *options: str, conf: dict[str, Any] | None = None, **env: str) -> Worker:
        """Start a worker and return when it takes tasks."""
        worker = self.launch(*options, conf=conf, **env)
        wait_until(worker.why_not_ready, [worker.child], what=worker.name, timeout=60)
        return worker

    def close(self) -> None:
        """Stop every worker that still runs, and the client's own connections."""
        for worker in self._workers:
            worker.stop(grace=10)
        self.app.backend.result_consumer.stop()
        self.app.close()
        pools.reset()  # kombu keeps connections for the whole process


def _environment(url: str) -> dict[str, str]:
    return {
        **os.environ,
        "CELERY_BROKER_URL": url,
        "CELERY_RESULT_BACKEND": url,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def shop(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The tests' app on an empty Redis; its workers end with the test."""
    monkeypatch.setenv("CELERY_BROKER_URL", broker)
    monkeypatch.setenv("CELERY_RESULT_BACKEND", broker)
    monkeypatch.delenv("SHOP_CONF", raising=False)
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop("tests.services.tasks", None)
    import tests.services.tasks as module  # noqa: PLC0415 (reads the broker from the environment)

    shop = Shop(broker, tmp_path, module)
    yield shop
    shop.close()


@pytest.fixture
def in_python() -> Callable[..., str]:
    """Run a snippet in a fresh interpreter and return what it prints."""

    def run(code: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **env},
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


__all__ = ["ROOT", "Shop", "Worker"]
