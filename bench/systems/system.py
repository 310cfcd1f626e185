"""The interface of a measured system: it takes single items and returns their answers."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.models.reference import BATCH
from celery_batch.processes.managed_process import ManagedProcess

__all__ = ["LATENCY", "TIMEOUT", "Streaming", "System"]

#: Most seconds for which a streamer's item waits for others.
LATENCY = 0.1

#: Seconds after which an answer is given up, and the measurement with it.
TIMEOUT = 300.0

_ROOT = Path(__file__).parents[2]


class System(ABC):
    """One way to have single items answered, with its workers."""

    def __init__(self, model: str, workers: int, url: str) -> None:
        self.model = model
        self.workers = workers
        self.url = url
        self.exits = ExitStack()
        self.servers: list[ManagedProcess] = []

    @abstractmethod
    def start(self) -> None:
        """Start the workers; return when they will answer."""

    @abstractmethod
    def submit_one(self, item: int) -> Any:
        """Send one item; return something to `collect`."""

    @abstractmethod
    def collect(self, waiting: list[Any]) -> list[int]:
        """Return the answers, in order; wait for them."""

    def submit(self, items: range) -> list[Any]:
        """Send many single items in one call, where there is one for them."""
        return [self.submit_one(item) for item in items]

    def serve(self, *command: str, **env: str) -> ManagedProcess:
        """Start a server that ends with us, however we end."""
        folder = Path(self.exits.enter_context(tempfile.TemporaryDirectory()))
        inherited = {**os.environ, "PYTHONPATH": str(_ROOT), **env}
        log = folder / f"{Path(command[0]).stem}.log"
        server = self.exits.enter_context(ManagedProcess(command, log, env=inherited))
        self.servers.append(server)
        return server

    def stop(self) -> None:
        """Stop the workers."""
        self.exits.close()


class Streaming(System):
    """A streamer, ours or service-streamer's."""

    streamer: Any

    def start(self) -> None:
        """Start the workers; the first answer says that they are there."""
        self.streamer = self.make()
        self.collect(self.submit(range(BATCH)))

    @abstractmethod
    def make(self) -> Any:
        """Return the streamer."""

    def submit_one(self, item: int) -> Any:
        """Submit a batch of one."""
        return self.streamer.submit([item])

    def collect(self, waiting: list[Any]) -> list[int]:
        """Wait for each future."""
        return [answer for future in waiting for answer in future.result(TIMEOUT)]
