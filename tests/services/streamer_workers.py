"""Workers of streamers on one Redis, and programs that run beside them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import redis

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.streamer import RedisStreamer
from tests.apps.memory import recall
from tests.services.setup import ROOT

__all__ = ["LONG", "PROGRAMS", "StreamerWorkers", "family"]

PROGRAMS = ROOT / "tests" / "integration" / "streamer" / "programs"

#: Seconds that a worker may take to start on a busy machine.
LONG = 90


@dataclass
class StreamerWorkers:
    """
    Workers on one Redis, and their streamers.

    Args:
        url: The Redis, with its password and a database that is not the first.
        folder: For logs.
    """

    url: str
    folder: Path
    _names = count(1)
    _program: ManagedProcess | None = None

    @property
    def program(self) -> ManagedProcess:
        """The program that keeps the workers of the prefix "lab", running."""
        if self._program is None or self._program.exit_code is not None:
            self.close()
            self._program = self.run(
                "-m", "tests.apps.models.scripted_workers", self.url, "lab", "1"
            )
        return self._program

    def run(self, *command: str, cwd: Path = ROOT, **env: str) -> ManagedProcess:
        """Start a program of Python's that knows where the Redis is."""
        surroundings = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TESTS_MEMORY": self.url,
            "CELERY_BATCH_REDIS_BROKER": self.url,
            **env,
        }
        # In a folder of its own: reapers have no working directory.
        start = f"import os, sys; os.chdir({str(cwd)!r}); os.execv(sys.executable, sys.argv[1:])"
        return ManagedProcess(
            [sys.executable, "-c", start, sys.executable, "-W", "ignore", *command],
            self.folder / f"program-{next(self._names)}.log",
            env=surroundings,
        )

    def close(self) -> None:
        """End the program that keeps the workers running."""
        if self._program is not None:
            self._program.stop(20)

    def streamer(self, prefix: str = "lab", **options: Any) -> RedisStreamer:
        """Return a streamer."""
        return RedisStreamer(self.url, prefix, **{"worker_timeout": LONG, **options})

    def client(self) -> redis.Redis:
        """Return a client of the Redis."""
        return redis.Redis.from_url(self.url)

    def items(self) -> list[str]:
        """Return what the model has seen, in order."""
        return [item for fact in recall("lab") for item in fact["items"]]

    def hold(self, streamer: RedisStreamer) -> Callable[[], object]:
        """Keep the model busy; the answer, called, lets it go."""
        streamer.submit(["hold"])

        def is_free() -> str:
            return "" if recall("held") else "no request is held"

        wait_until(is_free, [self.program], what="a held model", timeout=LONG)

        def let_go() -> None:
            with self.client() as client:
                client.rpush("shop:let-go", "go")

        return let_go


def family(pid: int) -> list[psutil.Process]:
    """Return all processes below one."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []
