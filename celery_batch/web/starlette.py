"""Starlette, and what is built on it: error handlers, arrays in responses, a readiness probe."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery import Celery
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from celery_batch.web.arrays import encode_outputs
from celery_batch.web.errors import ERRORS, http_error
from celery_batch.web.readiness import areadiness

__all__ = ["add_exception_handlers", "array_response", "readiness_route"]


def add_exception_handlers(app: Starlette) -> None:
    """
    Answer errors of batch tasks and of the broker with `http_error`'s status and JSON.

    Other exceptions stay the framework's: a status of 500 and a traceback in the log.  A handler
    that the app has for one of their classes is kept.

    Args:
        app: The Starlette or FastAPI app.
    """
    for kind in ERRORS:
        app.exception_handlers.setdefault(kind, _error_response)


async def _error_response(_request: Request, exception: Exception) -> Response:
    error = http_error(exception)
    if error.status == 500:  # noqa: PLR2004 (the framework logs the traceback)
        raise exception
    return JSONResponse(error.body, error.status, error.headers)


def array_response(request: Request, outputs: Any) -> Response:
    """Return a response as the header ``Accept`` of a request asks for it; see `encode_outputs`."""
    body, content_type = encode_outputs(outputs, request.headers.get("Accept"))
    return Response(body, headers={"Vary": "Accept"}, media_type=content_type)


def readiness_route(celery: Celery, tasks: Collection[Any], *, path: str = "/readyz") -> Route:
    """
    Return a route with a readiness probe: 200 if workers serve the tasks, else 503.

    Args:
        celery: The Celery app.
        tasks: The batch tasks that the web app calls.
        path: The probe's path.
    """

    async def readyz(_request: Request) -> Response:
        found = await areadiness(celery, tasks)
        return JSONResponse(found.body, found.status)

    return Route(path, readyz, include_in_schema=False)
