"""
Serves a worker's metrics to Prometheus.

The main process serves them, as it knows of each batch on any pool: there is one endpoint
for each worker, and no files are shared.  All work is done on the thread of a scrape.  A
worker whose port is taken runs all the same, and tries again.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from celery import bootsteps
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE

from celery_batch.broker_depth import DepthReader, can_read_depth, open_depth_reader
from celery_batch.config import Settings
from celery_batch.errors import ConfigurationError
from celery_batch.processes.fork_guard import forks_delayed
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.metrics.snapshot import task_reports
from celery_batch.worker.scheduling.routing import queue_of, served_tasks

__all__ = ["BatchMetrics", "QueueDepths", "address_of"]

logger = logging.getLogger(__name__)

#: Seconds for which the depths of queues are used, and until a broker that did not answer is asked
#: again.
_FRESH, _PAUSE = 1.0, 5.0

#: Seconds for which a scrape waits for them.
_TIMEOUT = 2.0

#: Seconds after which a taken port is tried again.
_RETRY_AFTER = 5.0

_ALL = {"", "0.0.0.0", "::"}  # noqa: S104 (the names of all addresses)

_EVERYWHERE = "0.0.0.0"  # noqa: S104 (what a port without a host means)

#: Overrides the setting for one worker.
VARIABLE = "CELERY_BATCH_METRICS"

_LAST_PORT = 65535

_FORM = re.compile(r"(?:(?P<host>.*):)?(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """A host, and the ports of which the first free one is used."""

    host: str  # a name or an address of this machine; empty for all of them
    ports: range  # lowest first; 0 stands for any free port

    def __str__(self) -> str:
        first, last = self.ports[0], self.ports[-1]
        return f"{self.host}:{first}" + (f"-{last}" if last > first else "")


def address_of(app: Any, environ: Mapping[str, str] = os.environ) -> MetricsAddress | None:
    """Return the address at which a worker serves its metrics; None if it does not."""
    name = VARIABLE
    given: Any = environ.get(VARIABLE)
    if given is None:
        name, given = "batch_metrics", Settings.of(app).metrics
    if given in (None, ""):
        return None
    found = _FORM.fullmatch(str(given)) if not isinstance(given, bool) else None
    if found:
        host, first = found["host"], int(found["first"])
        last = int(found["last"] or first)
        if first <= last <= _LAST_PORT:
            host = "127.0.0.1" if host is None else host.strip("[]")
            return MetricsAddress(host, range(first, last + 1))
    raise ConfigurationError(
        f"{name}: must be HOST:PORT or HOST:FIRST-LAST, such as 127.0.0.1:9808-9815 of which the"
        f" first free port is taken, got {given!r}"
    )


class QueueDepths:
    """Reads the depths of broker queues, on a connection and a thread of its own."""

    def __init__(self, app: Any, queues: Iterable[str]) -> None:
        self._app = app
        self._queues = sorted(set(queues))
        self._reader: DepthReader | None = None
        self._found: dict[str, int] = {}
        self._good_until = -math.inf
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def read(self) -> dict[str, int]:
        """Return how many messages wait in each queue; nothing without an answer."""
        with self._lock:
            if self._thread is None and time.monotonic() >= self._good_until:
                self._thread = threading.Thread(target=self._ask, name="batch-depths", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(_TIMEOUT)
        return self._found if time.monotonic() < self._good_until else {}

    def _ask(self) -> None:
        try:
            self._found, pause = self._count(), _FRESH
        except Exception as error:  # noqa: BLE001 (whatever the broker's library raises)
            logger.debug("Could not read how many messages wait: %s", error)
            self._found, pause = {}, _PAUSE
            self.close()
        with self._lock:
            self._good_until, self._thread = time.monotonic() + pause, None

    def _count(self) -> dict[str, int]:
        if self._reader is None:
            if not can_read_depth(self._app):
                self._queues = []
                return {}
            with forks_delayed():
                self._reader = open_depth_reader(self._app)
        return {queue: self._reader.count(queue) for queue in self._queues}

    def close(self) -> None:
        """Close the connection."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class BatchMetrics(bootsteps.StartStopStep):  # type: ignore[misc]
    """Serves the metrics of this worker, from its first batch task to its end."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._context = WorkerContext.of(worker)
        self._context.serve_metrics = self.serve
        self._worker = worker
        self._exporter: _Exporter | None = None

    def serve(self, queues: list[str]) -> None:
        """Start to serve, if the settings ask for that and it has not been done."""
        address = address_of(self._worker.app)
        if address is not None and self._exporter is None:
            depths = QueueDepths(self._worker.app, queues)
            self._exporter = _Exporter(self._worker, address, depths)
            self._exporter.open()

    def start(self, worker: Any) -> None:
        """Start to serve; the pool processes were forked before, and do not hold the port."""
        routed = served_tasks(worker.app)
        if not routed:
            return
        try:
            self.serve([queue_of(worker.app, task) for task in routed])
        except ConfigurationError as error:
            logger.critical("This worker cannot start: %s", error)
            raise WorkerShutdown(EX_FAILURE) from None

    def stop(self, worker: Any) -> None:  # noqa: ARG002 (Celery's signature)
        """Stop serving."""
        self._context.metrics_url = None
        if self._exporter is not None:
            self._exporter.close()

    terminate = stop


class _Exporter:
    """The HTTP server of one worker."""

    def __init__(self, worker: Any, address: MetricsAddress, depths: QueueDepths) -> None:
        try:
            self._prometheus: Any = import_module("prometheus_client")
        except ImportError:
            raise ConfigurationError(
                f"metrics on {address}: prometheus_client is not installed;"
                ' pip install "celery-batch[metrics]"'
            ) from None
        # Now and not with a scrape: a process that is forked while a thread imports a module
        # could never import it.
        self._families = import_module("celery_batch.telemetry.prometheus").families
        self._worker = worker
        self._address = address
        self._depths = depths
        self._server: Any = None
        self._closed = threading.Event()
        devices = Settings.of(worker.app).devices
        self._gpus: Any = import_module("celery_batch.telemetry.gpus").find_gpus(devices)
        self._registry = self._prometheus.CollectorRegistry()
        self._prometheus.ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def describe(self) -> list[Any]:
        """Return nothing, so that the registry need not collect to know our names."""
        return []

    def open(self) -> None:
        """Serve now, or as soon as a port is free."""
        if not self._serve():
            logger.error(
                "The metrics of this worker cannot be scraped yet: %s is taken; to run several"
                " workers on this machine set a range of ports, or CELERY_BATCH_METRICS for each",
                self._address,
            )
            threading.Thread(target=self._try_again, name="batch-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._depths.close()

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; called on the thread of a scrape."""
        context = ConsumerContext.of(self._worker.consumer)
        scheduler = context.scheduler
        with scheduler.recorder.counts() as meter:
            counted = meter.copy()
        yield from self._families(
            counted,
            tasks=task_reports(context),
            idle=scheduler.recorder.idle_seconds(scheduler.slots),
            processes=scheduler.slots.model_processes,
            refused=context.validator.refusals.count,
            depths=self._depths.read(),
            labels={"worker": self._worker.hostname, "version": version("celery-batch")},
        )
        if self._gpus is not None:
            yield from self._gpus.families()

    def _serve(self) -> bool:
        for port in self._address.ports:
            try:
                self._server, _ = self._prometheus.start_http_server(
                    port, self._address.host or _EVERYWHERE, registry=self._registry
                )
            except OSError as error:
                logger.debug("Port %d of %s: %s", port, self._address.host, error)
                continue
            # A process that is forked from now on must not keep the port open after our end.
            os.register_at_fork(after_in_child=self._server.socket.close)
            host = self._address.host
            host = socket.gethostname() if host in _ALL else host
            url = f"http://{host}:{self._server.server_port}/metrics"
            WorkerContext.of(self._worker).metrics_url = url
            logger.info("Metrics for Prometheus on %s", url)
            return True
        return False

    def _try_again(self) -> None:
        while not self._closed.wait(_RETRY_AFTER):
            if self._serve():
                return
