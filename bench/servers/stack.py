"""A Redis and a stock worker for one measurement."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kombu import pools

from bench.app import app
from bench.servers.workers_ready import wait_for_workers
from celery_batch.processes.managed_process import ManagedProcess
from celery_batch.processes.redis_server import RedisServer

__all__ = ["Stack", "broker", "running"]

_ROOT = Path(__file__).parents[2]


class Stack:
    """What runs while we measure."""

    def __init__(self, app: Any, worker: ManagedProcess) -> None:
        self.app = app
        self.worker = worker

    def status(self) -> dict[str, Any]:
        """Return the worker's batch counters by task."""
        replies = self.app.control.broadcast("batch_status", reply=True, timeout=5.0, limit=1)
        (status,) = replies[0].values()
        return dict(status)


@contextmanager
def running(*options: str, timeout: float = 60.0, **env: str) -> Iterator[Stack]:
    """Run a worker on the Redis of `broker`, and yield when tasks are taken."""
    celery = str(Path(sys.executable).with_name("celery"))
    command = [celery, "-A", "bench.app", "worker", "-l", "WARNING", *options]
    env = {**os.environ, "PYTHONPATH": str(_ROOT), **env}
    with (
        tempfile.TemporaryDirectory() as folder,
        ManagedProcess(command, Path(folder) / "worker.log", env=env) as worker,
    ):
        wait_for_workers(app, 1, [worker], timeout)
        yield Stack(app, worker)


@contextmanager
def broker() -> Iterator[RedisServer]:
    """
    Run one Redis for all measurements, the app's broker and result backend.

    One, because the client keeps its connections from one worker to the next.
    """
    with RedisServer() as redis:
        os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = redis.url
        try:
            yield redis
        finally:
            app.close()
            pools.reset()
            # What the next case starts has a server of its own.
            del os.environ["CELERY_BROKER_URL"], os.environ["CELERY_RESULT_BACKEND"]
