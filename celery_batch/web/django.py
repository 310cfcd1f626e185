"""
Django: a middleware for errors of batch tasks, arrays in responses, and readiness probes.

Under WSGI a view is not told that its client has gone.  What the client has asked for is
computed until the deadline, when the calls that still wait expire.  Under ASGI Django cancels
an asynchronous view, and `apredict` then revokes the calls that still wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from celery import Celery
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.deprecation import MiddlewareMixin

from celery_batch.web.arrays import encode_outputs
from celery_batch.web.errors import ERRORS, http_error
from celery_batch.web.readiness import Readiness, areadiness, readiness

__all__ = ["BatchErrorMiddleware", "areadiness_view", "array_response", "readiness_view"]


class BatchErrorMiddleware(MiddlewareMixin):
    """
    Answers errors of batch tasks and of the broker with `http_error`'s status and JSON.

    Other exceptions stay Django's.  Name it in ``MIDDLEWARE``:
    ``"celery_batch.web.django.BatchErrorMiddleware"``.
    """

    def process_exception(self, _request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """
        Return a response for an exception of a view, or None to leave it to Django.

        Args:
            exception: What the view has raised.
        """
        if not isinstance(exception, ERRORS):
            return None
        error = http_error(exception)
        if error.status == 500:  # noqa: PLR2004 (Django logs the traceback)
            return None
        return JsonResponse(error.body, status=error.status, headers=error.headers)


def array_response(request: HttpRequest, outputs: Any) -> HttpResponse:
    """Return a response as the header ``Accept`` of a request asks for it; see `encode_outputs`."""
    body, content_type = encode_outputs(outputs, request.headers.get("Accept"))
    return HttpResponse(body, content_type=content_type, headers={"Vary": "Accept"})


def readiness_view(celery: Celery, tasks: Collection[Any]) -> Callable[..., HttpResponse]:
    """
    Return a view that answers 200 if workers serve the tasks, else 503.

    Args:
        celery: The Celery app.
        tasks: The batch tasks that the site calls.
    """

    def readyz(_request: HttpRequest) -> HttpResponse:
        return _response(readiness(celery, tasks))

    return readyz


def areadiness_view(
    celery: Celery, tasks: Collection[Any]
) -> Callable[..., Awaitable[HttpResponse]]:
    """Return an asynchronous view, for ASGI; see `readiness_view`."""

    async def readyz(_request: HttpRequest) -> HttpResponse:
        return _response(await areadiness(celery, tasks))

    return readyz


def _response(found: Readiness) -> HttpResponse:
    return JsonResponse(found.body, status=found.status)
