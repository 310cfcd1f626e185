"""Prometheus metrics of the web server."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Metrics"]

#: Names the folder of prometheus_client's multiprocess mode, which reads it when it is imported.
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """
    Requests by status, and how long they took.

    Args:
        folder: Where several web processes keep their counts, so that each shows those of all.
            None for a single process.
    """

    def __init__(self, folder: Path | None) -> None:
        os.environ.pop(_MULTIPROCESS, None)
        if folder:
            folder.mkdir(exist_ok=True)
            os.environ[_MULTIPROCESS] = str(folder)
        self._client: Any = import_module("prometheus_client")
        self._registry = self._client.CollectorRegistry()
        if folder:
            import_module("prometheus_client.multiprocess").MultiProcessCollector(self._registry)
        own = None if folder else self._registry
        self._requests = self._client.Counter(
            "celery_batch_serve_requests",
            "Requests of /predict that have ended, by their HTTP status.",
            ["status"],
            registry=own,
        )
        self._seconds = self._client.Histogram(
            "celery_batch_serve_request_seconds",
            "Seconds from a request of /predict to its response.",
            registry=own,
        )

    def record(self, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    async def view(self, _request: Request) -> Response:
        """Answer ``GET /metrics``."""
        text = self._client.generate_latest(self._registry)
        return Response(text, headers={"Content-Type": self._client.CONTENT_TYPE_LATEST})
