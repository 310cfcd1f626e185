"""What Prometheus is told about this server, in one process or in several."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from celery_batch.errors import ConfigurationError
from webapp.messages import Answer
from webapp.routes import Route, Visit

__all__ = ["UNKNOWN", "Meters"]

#: The route of requests for paths and methods that nobody has foreseen.
UNKNOWN = "unknown"

# The library has types, but not here.
_merge: Any = MultiProcessCollector.merge
_forget: Any = mark_process_dead

_PREFIX = "celery_batch_web"

#: Where the processes of one server leave their numbers, by the library's convention.
_SHARED = "PROMETHEUS_MULTIPROC_DIR"

#: Seconds; an answer takes milliseconds from a warm model, and the deadline at most.
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_OF_ONE_PROCESS = re.compile(r"gauge_live\w+_(\d+)\.db")


class Meters:
    """
    Counts requests, and shows the counts.

    Each has a registry of its own.  Where the environment says in which folder, the
    processes of a server share their counts, and any of them shows those of all.

    Args:
        environ: The environment, for a double.

    Raises:
        ConfigurationError: The folder cannot be used.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = _folder(environ.get(_SHARED))
        self._registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests that were answered.", "method", "route", "status"
        )
        self._seconds = Histogram(
            f"{_PREFIX}_request_duration_seconds",
            "Time from a request's arrival to its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._in_flight = Gauge(
            f"{_PREFIX}_requests_in_flight",
            "Requests that are being answered.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._refused = self._counter("refused", "Requests that were refused.", "reason")
        self._inputs = self._counter("inputs", "Inputs sent to workers, each as a task.", "task")
        self._bytes = self._counter("upload_bytes", "Bytes of pictures that were accepted.")
        #: Looking a child up costs more than to count with it.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._of_task: dict[str, Counter] = {}
        if self._folder is None:
            ProcessCollector(registry=self._registry)

    def routes(self) -> list[Route]:
        """Return the route that shows the counts."""
        return [Route("GET", "/metrics", self.show)]

    async def show(self, visit: Visit) -> Answer:
        """Answer with everything, in Prometheus' text format."""
        return await visit.way.call(self.render)  # type: ignore[no-any-return]

    def begin(self) -> None:
        """Count a request in; `observe` counts it out."""
        self._in_flight.inc()

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """
        Count a request that has been answered.

        Args:
            method: In capitals; one that HTTP knows.
            route: Its path in the table of routes, or `UNKNOWN`: never what a client wrote.
            status: Of the answer.
            seconds: From its arrival on.
        """
        self._in_flight.dec()
        requests, histogram = self._children.get((method, route, status)) or self._child(
            method, route, status
        )
        requests.inc()
        histogram.observe(seconds)

    def refused(self, reason: str) -> None:
        """
        Count a refusal.

        Args:
            reason: The name of its class.
        """
        self._refused.labels(reason).inc()

    def sent(self, task: str, count: int) -> None:
        """
        Count inputs.

        Args:
            task: The task's name.
            count: How many.
        """
        counter = self._of_task.get(task)
        if counter is None:
            counter = self._of_task[task] = self._inputs.labels(task)
        counter.inc(count)

    def uploaded(self, size: int) -> None:
        """
        Count bytes of pictures.

        Args:
            size: How many.
        """
        self._bytes.inc(size)

    def render(self) -> Answer:
        """Return everything in Prometheus' text format."""
        counted: Collector = self._registry
        if self._folder is not None:
            _forget_the_dead(self._folder)
            counted = _Shared(self._folder)
        headers = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"}
        return Answer(status=HTTPStatus.OK, body=generate_latest(counted), headers=headers)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", what, labels, registry=self._registry)

    def _child(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        requests = self._requests.labels(method, route, status)
        child = requests, self._seconds.labels(route)
        self._children[method, route, status] = child
        return child


class _Shared(Collector):
    """
    What all processes have counted.

    The library's own collector fails on a file that another process is about to begin.

    Args:
        folder: Where their files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Return it."""
        files = []
        for file in self._folder.glob("*.db"):
            with suppress(FileNotFoundError):
                if file.stat().st_size:
                    files.append(str(file))
        return _merge(files, accumulate=True)  # type: ignore[no-any-return]


def _folder(name: str | None) -> Path | None:
    """Return the folder for counts of several processes, made if it is not there."""
    if not name:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{_SHARED}: {name!r} is no folder to write to: {error}") from None
    return folder


def _forget_the_dead(folder: Path) -> None:
    """Count nothing as being in flight in processes that are gone, however they went."""
    for file in folder.glob("gauge_live*.db"):
        found = _OF_ONE_PROCESS.fullmatch(file.name)
        if found and not _lives(int(found[1])):
            with suppress(FileNotFoundError):  # another process has been as quick
                _forget(int(found[1]), str(folder))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
