"""Workers of small apps, on servers of the tests, and a client that knows only Celery."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Self

import psutil
import redis
from celery import Celery
from kombu import pools

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.backends import close_backend
from tests.services.forked import start

__all__ = ["Launcher", "pool_process"]

ROOT = Path(__file__).parents[2]

#: Without the second that a worker spends looking for neighbours.
_QUICK = ("-l", "INFO", "--without-mingle", "--without-gossip")


class Launcher:
    """
    Workers of any app on one broker, and a client that knows nothing but Celery.

    Args:
        server: An empty Redis: the result backend, and where tasks remember what they saw.
        folder: For logs and whatever a backend wants to keep.
        broker: Another broker than the Redis.
    """

    _names = count(1)

    def __init__(self, server: RedisServer, folder: Path, *, broker: str = "") -> None:
        self.backend = server.url
        self.broker = broker or server.url
        self.folder = folder
        self.queue = f"stage{next(self._names)}"
        self._memory = str(server.directory / "redis.sock")
        self.redis = redis.Redis(unix_socket_path=self._memory)
        self.redis.flushall()
        self._workers: list[ManagedProcess] = []
        self._clients: list[Celery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def client(self, **conf: Any) -> Celery:
        """Return an app of the caller's side, with these settings."""
        backend = conf.get("result_backend", self.backend)
        app = Celery("client", broker=self.broker, backend=backend, set_as_current=False)
        app.conf.update({"task_default_queue": self.queue, **conf})
        self._clients.append(app)
        return app

    def launch(
        self, module: str, *options: str, conf: dict[str, Any] | None = None, **env: str
    ) -> Callable[[], ManagedProcess]:
        """Start a worker of the app in a module; the answer, called, waits until it is ready."""
        name = f"s{next(self._names)}@localhost"
        command = [str(Path(sys.executable).with_name("celery")), "-A", module, "worker"]
        worker = start(
            [*command, "-n", name, *_QUICK, *options],
            self.folder / f"{name}.log",
            env={
                **os.environ,
                "CELERY_BROKER_URL": self.broker,
                "CELERY_RESULT_BACKEND": (conf or {}).get("result_backend", self.backend),
                "SMALL_APP_MEMORY": self._memory,
                "SMALL_APP_CONF": json.dumps({"task_default_queue": self.queue, **(conf or {})}),
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                **env,
            },
        )
        self._workers.append(worker)
        app = self.client()

        def ready() -> ManagedProcess:
            wait_until(lambda: _silent(app, worker, name), [worker], what=name, timeout=90)
            return worker

        return ready

    @property
    def names(self) -> list[str]:
        """The names of the workers that run."""
        return [worker.name for worker in self._workers if worker.exit_code is None]

    def worker(
        self, module: str, *options: str, conf: dict[str, Any] | None = None, **env: str
    ) -> ManagedProcess:
        """Start a worker of the app in a module; return when it takes tasks."""
        return self.launch(module, *options, conf=conf, **env)()

    def facts(self, kind: str) -> list[Any]:
        """Return what the tasks have remembered under a name."""
        return [json.loads(fact) for fact in self.redis.lrange(f"stage:{kind}", 0, -1)]

    def await_facts(self, kind: str, number: int) -> list[Any]:
        """Return what the tasks remember, once it is at least this many facts."""

        def missing() -> str:
            found = self.redis.llen(f"stage:{kind}")
            return "" if found >= number else f"{found} of {number} facts"

        running = [worker for worker in self._workers if worker.exit_code is None]
        wait_until(missing, running, what=kind, timeout=30)
        return self.facts(kind)

    def close(self) -> None:
        """Stop the workers, and close what the clients have opened."""
        with ThreadPoolExecutor() as threads:  # each takes a second or two to stop
            list(threads.map(lambda worker: worker.stop(grace=10), self._workers))
        for app in self._clients:
            close_backend(app)
            app.close()
        self.redis.close()
        pools.reset()  # kombu keeps connections for the whole process


def _silent(app: Celery, worker: ManagedProcess, name: str) -> str:
    # A ping that comes before it listens has no answer, and takes its half a second.
    if f"{name} ready." not in worker.log.read_text():
        return "does not say that it is ready"
    return "" if app.control.ping([name], timeout=0.5, limit=1) else "does not answer a ping"


def pool_process(worker: ManagedProcess) -> psutil.Process:
    """Return the worker's one pool process."""
    (server,) = psutil.Process(worker.pid).children()
    (process,) = server.children()
    return process
