"""Django sites of users: their views call a batch task, and what goes wrong is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from celery_batch import BatchTask
from celery_batch.errors import QueueFull
from celery_batch.web.django import areadiness_view, readiness_view
from celery_batch.web.predict import apredict, predict
from tests.services.servers.ports import quiet_port

if not settings.configured:
    settings.configure()

_ERRORS = {each.__name__: each for each in (ValueError, RuntimeError, QueueFull)}


def _upper(text: list[str]) -> list[Any]:
    return [ValueError("no letters") if each.isdecimal() else each.upper() for each in text]


def _raise(_request: HttpRequest, name: str) -> None:
    raise _ERRORS[name]


async def _araise(_request: HttpRequest, name: str) -> None:
    raise _ERRORS[name]


@pytest.fixture
def urls() -> Iterator[Any]:
    """The site's routes: a task that runs in place, errors, and probes of two apps."""
    broker = f"redis://127.0.0.1:{quiet_port()}/0"
    with (
        Celery("eager", broker="memory://", set_as_current=False) as celery,
        Celery("adrift", broker=broker, set_as_current=False) as adrift,
    ):
        celery.conf.task_always_eager = True
        upper = celery.task(base=BatchTask, name="upper")(_upper)
        away = adrift.task(base=BatchTask, name="upper")(_upper)

        def view(_request: HttpRequest, text: str) -> JsonResponse:
            return JsonResponse(predict(upper, [text], timeout=1), safe=False)

        async def aview(_request: HttpRequest, text: str) -> JsonResponse:
            """Await the task's answer."""
            return JsonResponse(await apredict(upper, [text], timeout=1), safe=False)

        urls = ModuleType("urls")
        urls.urlpatterns = [
            path("sync/upper/<text>", view),
            path("async/upper/<text>", aview),
            path("sync/raise/<name>", _raise),
            path("async/raise/<name>", _araise),
            path("sync/readyz", readiness_view(celery, [upper])),
            path("async/readyz", areadiness_view(celery, [upper])),
            path("sync/adrift", readiness_view(adrift, [away])),
            path("async/adrift", areadiness_view(adrift, [away])),
        ]
        yield urls


@pytest.fixture(params=["wsgi-sync", "asgi-sync", "asgi-async"])
def get(request: pytest.FixtureRequest, urls: Any) -> Iterator[Callable[[str], Any]]:
    """GET of a path, of views that are functions or coroutines, under both interfaces."""
    interface, views = request.param.split("-")

    def get(path: str) -> Any:
        url = f"/{views}{path}"
        if interface == "wsgi":
            return Client(raise_request_exception=False).get(url)
        return asyncio.run(AsyncClient(raise_request_exception=False).get(url))

    middleware = ["celery_batch.web.django.BatchErrorMiddleware"]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=middleware, ALLOWED_HOSTS=["*"]):
        yield get


def test_the_tasks_errors_are_answered(get: Callable[[str], Any]):
    """With `http_error`'s status, body and headers."""
    good, bad, full = (get(path) for path in ("/upper/a", "/upper/1", "/raise/QueueFull"))

    assert (200, ["A"]) == (good.status_code, good.json())
    assert {"error": {"type": "ValueError", "message": "no letters"}} == bad.json()
    assert (422, 429) == (bad.status_code, full.status_code)
    assert full.headers["Retry-After"].isdecimal()


@pytest.mark.parametrize("name", ["ValueError", "RuntimeError"])
def test_the_views_errors_are_its_own(
    get: Callable[[str], Any], caplog: pytest.LogCaptureFixture, name: str
):
    """An error of the view is a mistake of the program, and Django logs it."""
    response = get(f"/raise/{name}")

    assert 500 == response.status_code
    assert b"Server Error (500)" in response.content
    assert name in caplog.text


def test_probes_are_told(get: Callable[[str], Any]):
    """200 while the tasks are served, else 503 with the reason."""
    ready, away = get("/readyz"), get("/adrift")

    assert (200, {"ready": True, "reasons": {}}) == (ready.status_code, ready.json())
    assert (503, ["broker"]) == (away.status_code, [*away.json()["reasons"]])
