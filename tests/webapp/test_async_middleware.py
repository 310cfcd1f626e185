"""The Django site's middlewares under ASGI."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.security import SecurityMiddleware
from django.test import AsyncClient, override_settings
from django.urls import path
from django_prometheus.middleware import PrometheusAfterMiddleware, PrometheusBeforeMiddleware
from prometheus_client import REGISTRY
from whitenoise.middleware import WhiteNoiseMiddleware

if not settings.configured:
    settings.configure()

_HOOKS = [
    (PrometheusBeforeMiddleware, "process_request"),
    (PrometheusBeforeMiddleware, "process_response"),
    (SecurityMiddleware, "process_request"),
    (SecurityMiddleware, "process_response"),
    (PrometheusAfterMiddleware, "process_request"),
    (PrometheusAfterMiddleware, "process_view"),
    (PrometheusAfterMiddleware, "process_response"),
    (WhiteNoiseMiddleware, "__call__"),
]


async def _view(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("view")


@pytest.fixture
def get(tmp_path: Any) -> Iterator[Any]:
    """GET of a path of a site that has these middlewares, one view and one file."""
    (tmp_path / "page.css").write_text("a {}")
    urls = ModuleType("urls")
    urls.urlpatterns = [path("view", _view, name="of-the-test")]
    name = "webapp.django_site.async_middleware"
    middleware = [
        f"{name}.PrometheusBeforeMiddleware",
        f"{name}.SecurityMiddleware",
        f"{name}.WhiteNoiseMiddleware",
        f"{name}.PrometheusAfterMiddleware",
    ]
    with override_settings(
        ROOT_URLCONF=urls,
        MIDDLEWARE=middleware,
        ALLOWED_HOSTS=["*"],
        STATIC_URL="/static/",
        STATIC_ROOT=tmp_path,
    ):
        yield lambda path: asyncio.run(AsyncClient().get(path))


def _counted() -> float:
    labels = {"view": "of-the-test", "transport": "http", "method": "GET"}
    name = "django_http_requests_total_by_view_transport_method_total"
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_they_do_what_they_do_elsewhere(get: Any):
    """A request is counted for its view, a file is served, and both have security headers."""
    before = _counted()
    view, file = get("/view"), get("/static/page.css")
    file.close()

    assert b"view" == view.content
    assert "text/css" in file.headers["Content-Type"]
    assert ["nosniff"] * 2 == [each.headers["X-Content-Type-Options"] for each in (view, file)]
    assert before + 1 == _counted()


def test_none_of_them_has_a_thread(get: Any, monkeypatch: pytest.MonkeyPatch):
    """All hooks are called on the thread of the event loop."""
    threads = {}

    def note(kind: type, name: str) -> None:
        """Have a hook tell its thread."""
        hook = getattr(kind, name)

        def noted(*args: Any) -> Any:
            threads[kind.__name__, name] = threading.current_thread()
            return hook(*args)

        monkeypatch.setattr(kind, name, noted)

    for kind, name in _HOOKS:
        note(kind, name)
    get("/view")

    assert {(kind.__name__, name) for kind, name in _HOOKS} == threads.keys()
    assert {threading.current_thread()} == {*threads.values()}
