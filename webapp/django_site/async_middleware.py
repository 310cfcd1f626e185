"""
The middlewares under ASGI, which run on the event loop.

Django calls each hook of a synchronous middleware in a thread, and behind one that is not
``async_capable``, as WhiteNoise's, each request has a thread until it is answered.  Hooks that
wait for nothing need none: without these threads a request takes two thirds of the processor
time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.middleware import security
from django_prometheus import middleware as prometheus
from whitenoise import middleware as whitenoise

__all__ = [
    "PrometheusAfterMiddleware",
    "PrometheusBeforeMiddleware",
    "SecurityMiddleware",
    "WhiteNoiseMiddleware",
]


class _OnEventLoop:
    """Calls the hooks of a `MiddlewareMixin` without a thread."""

    sync_capable = False
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]
    process_request: Callable[[HttpRequest], HttpResponseBase | None]
    process_response: Callable[[HttpRequest, HttpResponseBase], HttpResponseBase]

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.process_request(request) or await self.get_response(request)
        return self.process_response(request, response)


class PrometheusBeforeMiddleware(_OnEventLoop, prometheus.PrometheusBeforeMiddleware):  # type: ignore[misc]
    """Counts requests before all other middlewares."""


class SecurityMiddleware(_OnEventLoop, security.SecurityMiddleware):  # type: ignore[misc]
    """Sets Django's security headers."""


class PrometheusAfterMiddleware(_OnEventLoop, prometheus.PrometheusAfterMiddleware):  # type: ignore[misc]
    """Counts requests by their views."""

    async def process_view(self, *request_and_view: Any) -> None:
        """Count a request for its view."""
        super().process_view(*request_and_view)


class WhiteNoiseMiddleware(whitenoise.WhiteNoiseMiddleware):  # type: ignore[misc]
    """Serves the files that were in the folder at the start; passes other requests on."""

    sync_capable, async_capable = False, True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return a file, or what the next middleware answers."""
        response: Any = super().__call__(request)
        if isawaitable(response):
            response = await response
        return response  # type: ignore[no-any-return]
