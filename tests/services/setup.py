"""The client side of the tests' app and its workers, on any broker."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from celery import _state
from celery.app.control import Control
from kombu import pools

from celery_batch.client.results.listener import close_listener
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.backends import close_backend
from tests.services.forked import start

ROOT = Path(__file__).parents[2]
#: Without the second that a worker spends looking for neighbours.
_QUICK = ("-l", "INFO", "--without-mingle", "--without-gossip")

CELERY = str(Path(sys.executable).with_name("celery"))


@dataclass
class Worker:
    """A worker process of the tests' app, as a user would start it."""

    name: str
    child: ManagedProcess
    setup: Setup
    #: It logs warnings alone.
    is_quiet: bool = False

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
        return self.ask("batch_status")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return its answer to a control command."""
        # A control of its own has a queue of its own: `limit` counts late replies to others.
        (reply,) = Control(self.setup.app).broadcast(
            command, arguments, reply=True, destination=[self.name], timeout=60.0, limit=1
        )
        return reply[self.name]

    def counted(self, task: str, **outcomes: int) -> dict[str, Any]:
        """
        Return its answer to ``batch_stats`` when it has heard of these ends.

        Callers hear of theirs from the pool process, a moment before.
        """
        told: dict[str, Any] = {}

        def missing() -> str:
            told.update(self.ask("batch_stats"))
            found = told["tasks"].get(task, {}).get("outcomes", {})
            return "" if outcomes.items() <= found.items() else f"has counted {found}"

        wait_until(missing, [self.child], what=self.name, timeout=60)
        return told

    def stats(self) -> dict[str, Any]:
        """Return its answer to ``inspect stats``."""
        control = Control(self.setup.app)
        return control.inspect([self.name], timeout=60.0, limit=1).stats()[self.name]

    def why_not_ready(self) -> str:
        """Ask whether it takes tasks; the empty string says yes."""
        # A ping that comes before it listens has no answer, and takes its half a second.
        if not self.is_quiet and f"{self.name} ready." not in self.log:
            return "does not say that it is ready"
        # A pong that is late goes to a queue that nobody reads: `limit` of a later question to the
        # app's own control would count it.
        pong = Control(self.setup.app).ping([self.name], timeout=0.5, limit=1)
        return "" if pong else "does not answer a ping"


class Setup:
    """
    The client side of the tests' app, and its workers.

    Args:
        environment: Where broker, result backend and the tasks' memory are.
        folder: For the workers' logs.
        module: The tests' app, imported in this environment.
    """

    _names = count(1)

    def __init__(self, environment: dict[str, str], folder: Path, module: Any) -> None:
        self.environment = environment
        self.url = environment["CELERY_BROKER_URL"]
        self.folder = folder
        self.module = module
        self.app = module.app
        self._workers: list[Worker] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def launch(self, *options: str, conf: dict[str, Any] | None = None, **env: str) -> Worker:
        """Start a worker without waiting for it; keyword arguments are environment."""
        name = f"w{next(self._names)}@localhost"
        child = start(
            [CELERY, "-A", self.module.__name__, "worker", "-n", name, *_QUICK, *options],
            self.folder / f"{name}.log",
            env={**os.environ, **self.environment, "TESTS_CONF": json.dumps(conf or {}), **env},
        )
        worker = Worker(name, child, self, is_quiet="WARNING" in options)
        self._workers.append(worker)
        return worker

    def worker(self, *options: str, conf: dict[str, Any] | None = None, **env: str) -> Worker:
        """Start a worker and return when it takes tasks."""
        worker = self.launch(*options, conf=conf, **env)
        wait_until(worker.why_not_ready, [worker.child], what=worker.name, timeout=90)
        return worker

    def close(self) -> None:
        """Stop every worker that still runs, and the client's own connections."""
        for worker in self._workers:
            worker.stop(grace=10)
        close_listener(self.app)
        close_backend(self.app)
        self.app.close()
        pools.reset()  # kombu keeps connections for the whole process


def environment_of(
    broker: str, *, backend: str = "", memory: str = "", queue: str = "celery"
) -> dict[str, str]:
    """
    Return what tells the tests' app and its workers which servers are theirs.

    Args:
        broker: The broker's URL.
        backend: The result backend, the broker if empty.
        memory: The Redis for what the tasks remember, the backend if empty.
        queue: The default queue.
    """
    return {
        "CELERY_BROKER_URL": broker,
        "CELERY_RESULT_BACKEND": backend or broker,
        "TESTS_MEMORY": memory or backend or broker,
        "TESTS_QUEUE": queue,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def surroundings(environment: dict[str, str]) -> Iterator[None]:
    """Have this process look as the tests' app expects it, and its tasks to itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("TESTS_CONF", raising=False)
        patch.syspath_prepend(str(ROOT))
        yield


def enter_setup(
    environment: dict[str, str], folder: Path, module: str = "tests.apps.tasks"
) -> Setup:
    """
    Import the tests' app anew, in `surroundings`; on RabbitMQ with empty queues.

    Args:
        environment: As in the surroundings.
        folder: For the workers' logs.
        module: The app's module.
    """
    sys.modules.pop(module, None)
    before = frozenset(_state._on_app_finalizers)
    with warnings.catch_warnings():
        # Its shared tasks are offered to the apps of other tests, which may have them.
        warnings.filterwarnings("ignore", "Task name .* is already registered")
        setup = Setup(environment, folder, importlib.import_module(module))
        setup.app.finalize()
    # Else all its tasks were offered to every app that is made later, too.
    _state._on_app_finalizers = set(before)
    if setup.url.startswith("amqp"):
        _delete_queues(setup.app)
    return setup


@contextmanager
def open_setup(
    broker: str,
    folder: Path,
    *,
    backend: str = "",
    memory: str = "",
    module: str = "tests.apps.tasks",
) -> Iterator[Setup]:
    """
    Have the tests' app on some servers; its workers end with the context.

    Args:
        broker: The broker's URL; its queues of this app are made empty.
        folder: For the workers' logs.
        backend: The result backend, the broker if empty.
        memory: The Redis for what the tasks remember, the backend if empty.
        module: The app's module.
    """
    environment = environment_of(broker, backend=backend, memory=memory)
    with surroundings(environment):
        setup = enter_setup(environment, folder, module)
        try:
            yield setup
        finally:
            setup.close()


def _delete_queues(app: Any) -> None:
    """Begin with empty queues on a server that other tests have used."""
    names = {app.conf.task_default_queue, *(app.conf.task_routes or {}).values()}
    with app.connection_for_write() as connection:
        for name in names:
            connection.default_channel.queue_delete(name)


def emptied(server: RedisServer) -> str:
    """Forget all that a Redis holds; return its URL."""
    with redis.Redis(unix_socket_path=str(server.directory / "redis.sock")) as client:
        client.flushall()
    return server.url
