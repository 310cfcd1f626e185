"""
The web server of a served handle: ``POST /predict``, an ASGI app under uvicorn.

Each request is one task, whose result is awaited; it is revoked if the client disconnects.
"""

from __future__ import annotations

import logging
import os
import time
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from celery_batch.errors import MessageTooLarge
from celery_batch.serve.app import CONFIG, LARGEST_BODY, config_of_process, make_app, make_task
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.envelope import is_large, object_in, sealed
from celery_batch.serve.openapi import openapi
from celery_batch.serve.sockets import listening
from celery_batch.web.arrays import as_lists
from celery_batch.web.disconnect import ClientDisconnected, until_disconnect
from celery_batch.web.errors import HttpError, http_error
from celery_batch.web.predict import apredict
from celery_batch.web.prepare import prepare
from celery_batch.web.starlette import readiness_route

__all__ = ["Metrics", "main", "make_web"]

logger = logging.getLogger(__name__)

#: Seconds for requests that are being answered when the server is stopped.
_GRACE = 5

#: Seconds in which the broker accepts the largest message, 30 MB, on a slow network.
_SEND = 10.0

#: Names the folder of prometheus_client's multiprocess mode, which reads it when it is imported.
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


def make_web(config: ServeConfig, counts: Path | None = None) -> Starlette:
    """Make the ASGI app; several web processes share a folder for their metrics."""
    app = make_app(config)
    app.conf.broker_transport_options = {"socket_timeout": _SEND}
    prepare(app)
    task = make_task(app, config)
    metrics, description = Metrics(counts), openapi(config)

    async def predict(request: Request) -> Response:
        began = time.perf_counter()
        response = await _answer(request, task, config.time_limit)
        metrics.record(response.status_code, time.perf_counter() - began)
        return response

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def describe(_request: Request) -> Response:
        return JSONResponse(description)

    routes = [
        Route("/predict", predict, methods=["POST"]),
        Route("/healthz", healthz),
        readiness_route(app, [task]),
        Route("/openapi.json", describe),
        Route("/metrics", metrics.view),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refuse_route})


async def _answer(request: Request, task: Any, timeout: float) -> Response:  # noqa: ASYNC109
    """Serve one request as one task."""
    task_id = None
    try:
        posted = await _posted(request)
        task_id = str(uuid4())
        call = apredict(task, [sealed(task_id, posted)], timeout=timeout, task_id=task_id)
        (answer,) = await until_disconnect(request.receive, call)
        return JSONResponse(as_lists(answer))  # a ValueError, if the handle returned a NaN
    except (ClientDisconnect, ClientDisconnected):
        return Response(status_code=ClientDisconnected.status_code)
    except Exception as exception:
        error = http_error(exception)
        if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.exception("Task %s has no answer", task_id)
        elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            logger.warning("Task %s has no answer: %r", task_id, exception)
        return _error_response(error, task_id)


async def _posted(request: Request) -> dict[str, Any] | bytes:
    """Return a request's body, which has to be a JSON object; a large one is not parsed."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise MessageTooLarge(f"the body is larger than {LARGEST_BODY} bytes")
    return bytes(body) if is_large(body) else object_in(body)


def _error_response(error: HttpError, task_id: str | None = None) -> JSONResponse:
    body = error.body | ({"task_id": task_id} if task_id else {})
    return JSONResponse(body, error.status, error.headers)


async def _refuse_route(_request: Request, exception: Exception) -> Response:
    """Answer a wrong path or method."""
    assert isinstance(exception, HTTPException)  # noqa: S101 (as registered)
    kind = HTTPStatus(exception.status_code).phrase.replace(" ", "")
    error = HttpError(exception.status_code, kind, exception.detail)
    return JSONResponse(error.body, error.status, exception.headers)


class Metrics:
    """Requests by status, and how long they took; in a folder, those of all web processes."""

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


def main() -> None:
    """Serve the configuration of this process until it is stopped."""
    config = config_of_process()
    counts = Path(os.environ[CONFIG]).parent / "metrics" if config.web_workers > 1 else None
    web = make_web(config, counts)
    server = uvicorn.Server(uvicorn.Config(web, access_log=False, timeout_graceful_shutdown=_GRACE))
    # Web processes share the port.
    server.run(sockets=listening(config.host, config.port, reuse_port=config.web_workers > 1))


if __name__ == "__main__":
    main()
