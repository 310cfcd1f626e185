"""Players on Celery: ours, celery-batches, plain Celery; each app is served by a stock worker."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from celery import group

from bench.servers.workers_ready import wait_for_workers
from bench.systems.system import TIMEOUT, System

__all__ = ["CeleryBatches", "OurBatches", "Ours", "PlainCelery", "StockClient"]


class _OnCelery(System):
    #: Where the app is; the worker gets the same name.
    module: ClassVar[str]
    #: The task, if it is not called by the model's name.
    task_name: ClassVar[str] = "bench.{model}"

    def start(self) -> None:
        """Start the workers of concurrency 1, and wait until all answer."""
        os.environ["CELERY_RESULT_BACKEND"] = self.url
        os.environ.setdefault("CELERY_BROKER_URL", self.url)
        os.environ["BENCH_MODEL"] = self.model
        self.app = import_module(self.module).app
        self.task = self.app.tasks[self.task_name.format(model=self.model)]
        celery = str(Path(sys.executable).with_name("celery"))
        options = ("-l", "WARNING", "--without-gossip", "--without-mingle")
        for number in range(self.workers):
            name = f"worker-{number}@bench"
            command = (celery, "-A", self.module, "worker", "--concurrency=1", "-n", name)
            self.serve(*command, *options)
        wait_for_workers(self.app, self.workers, self.servers)

    def submit_one(self, item: int) -> Any:
        """Send one task with `delay`."""
        return self.task.delay(item)

    def submit(self, items: range) -> list[Any]:
        """Send a group, which is what Celery has for many calls."""
        return list(group(self.task.s(item) for item in items).apply_async().children)

    def collect(self, waiting: list[Any]) -> list[int]:
        """Wait for each result."""
        return [result.get(timeout=TIMEOUT) for result in waiting]


class PlainCelery(_OnCelery):
    """Celery without batches: the model sees one item at a time."""

    module = "bench.systems.plain_app"


class CeleryBatches(_OnCelery):
    """The package celery-batches."""

    module = "bench.systems.batches_app"


class OurBatches(_OnCelery):
    """The program for celery-batches with its import line changed, on the same Celery."""

    module = "bench.systems.our_batches_app"


class Ours(_OnCelery):
    """celery_batch."""

    module = "bench.app"

    def submit(self, items: range) -> list[Any]:
        """Send all in one go."""
        return list(self.task.delay_many(list(items)))

    def status(self) -> dict[str, Any]:
        """Return the batch counters of the first worker that answers."""
        replies = self.app.control.broadcast("batch_status", reply=True, timeout=5.0, limit=1)
        (status,) = replies[0].values()
        return dict(status[self.task.name])


class StockClient(_OnCelery):
    """Celery's own client and an ordinary task, in our environment: this Celery's version."""

    module = "bench.app"
    task_name = "bench.plain"
