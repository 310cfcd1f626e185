"""Flask apps of users: their views call a batch task, and what goes wrong is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from flask import Flask, abort
from flask.testing import FlaskClient

from celery_batch import BatchTask
from celery_batch.errors import QueueFull
from celery_batch.web.flask import array_response, readiness_blueprint, register_error_handlers
from celery_batch.web.predict import predict
from tests.services.servers.ports import quiet_port


@pytest.fixture
def celery() -> Iterator[Celery]:
    """A Celery app whose tasks run in the caller's process."""
    with Celery("eager", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True
        app.task(base=BatchTask, name="upper")(_upper)
        yield app


@pytest.fixture
def adrift() -> Iterator[Celery]:
    """A Celery app without a broker."""
    broker = f"redis://127.0.0.1:{quiet_port()}/0"
    with Celery("adrift", broker=broker, set_as_current=False) as app:
        app.task(base=BatchTask, name="upper")(_upper)
        yield app


def _upper(text: list[str]) -> list[Any]:
    return [ValueError("no letters") if each.isdecimal() else each.upper() for each in text]


def each_of(task: Any, texts: str) -> list[Any]:
    """Return an output or an error for each of these texts."""
    return predict(task, texts.split(","), timeout=1, return_exceptions=True)


def _raise(error: type[Exception]) -> None:
    raise error


@pytest.fixture
def client(celery: Celery, adrift: Celery) -> FlaskClient:
    """A client of an app with error handlers and readiness probes."""
    app = Flask(__name__)
    register_error_handlers(app)
    app.register_blueprint(readiness_blueprint(celery, [celery.tasks["upper"]]))
    tasks = [adrift.tasks["upper"]]
    app.register_blueprint(readiness_blueprint(adrift, tasks, path="/adrift"), name="adrift")
    upper = celery.tasks["upper"]
    app.add_url_rule("/upper/<text>", "upper", lambda text: predict(upper, [text], timeout=1))
    app.add_url_rule("/each/<texts>", "each", lambda texts: each_of(upper, texts))
    app.add_url_rule("/array/<texts>", "array", lambda texts: array_response(each_of(upper, texts)))
    for error in (ValueError, RuntimeError, QueueFull):
        app.add_url_rule(f"/{error.__name__}", error.__name__, lambda error=error: _raise(error))
    app.add_url_rule("/abort", "abort", lambda: abort(418))
    return app.test_client()


def test_the_tasks_errors_are_answered(client: FlaskClient):
    """With `http_error`'s status, body and headers."""
    good, bad, full = (client.get(path) for path in ("/upper/a", "/upper/1", "/QueueFull"))

    assert (200, ["A"]) == (good.status_code, good.json)
    assert {"error": {"type": "ValueError", "message": "no letters"}} == bad.json
    assert (422, 429) == (bad.status_code, full.status_code)
    assert full.headers["Retry-After"].isdecimal()


@pytest.mark.parametrize("path", ["/each/a,1", "/array/a,1"])
def test_an_error_in_its_items_place_is_answered(client: FlaskClient, path: str):
    """The other items have their outputs, and the body says what failed, as an error's does."""
    error = {"type": "ValueError", "message": "no letters", "index": 1}

    assert ["A", {"error": error}] == client.get(path).json


@pytest.mark.parametrize(
    ("path", "status"), [("/ValueError", 500), ("/RuntimeError", 500), ("/abort", 418)]
)
def test_the_views_errors_are_its_own(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, path: str, status: int
):
    """An error of the view is a mistake of the program, and Flask logs it."""
    response = client.get(path)

    assert status == response.status_code
    assert "text/html" in response.content_type
    assert (status == 500) == (path.strip("/") in caplog.text)


def test_the_apps_own_handlers_are_kept(celery: Celery):
    """A handler for ValueError sees the view's errors and the task's, one for 422 neither."""
    app = Flask(__name__)
    app.register_error_handler(ValueError, lambda error: (f"mine: {error}", 418))
    register_error_handlers(app)
    upper = celery.tasks["upper"]
    app.add_url_rule("/upper/<text>", "upper", lambda text: predict(upper, [text], timeout=1))
    app.add_url_rule("/view", "view", lambda: _raise(ValueError))
    client = app.test_client()
    task, view = client.get("/upper/1"), client.get("/view")

    assert (418, "mine: no letters") == (task.status_code, task.text)
    assert (418, "mine: ") == (view.status_code, view.text)


def test_probes_are_told(client: FlaskClient):
    """200 while the tasks are served, else 503 with the reason."""
    ready, away = client.get("/readyz"), client.get("/adrift")

    assert (200, {"ready": True, "reasons": {}}) == (ready.status_code, ready.json)
    assert (503, ["broker"]) == (away.status_code, [*away.json["reasons"]])
