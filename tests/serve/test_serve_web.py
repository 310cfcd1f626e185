"""The web server in this process, with nobody behind it."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from unittest.mock import AsyncMock

import pytest
from starlette.testclient import TestClient

from celery_batch.client.listener import close_listener
from celery_batch.errors import ConfigurationError
from celery_batch.serve import app, posted, web
from celery_batch.serve.config import ServeConfig


@contextmanager
def client_of(broker, time_limit=0.3):
    """Give the client of a server on some broker, and close its connections."""
    made = []
    config = ServeConfig("H", queue=uuid.uuid4().hex, broker=broker, time_limit=time_limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "make_app", lambda config: made.append(app.make_app(config)) or made[0])
        asgi = web.make_web(config)
    try:
        with TestClient(asgi) as client:
            yield client
    finally:
        close_listener(made[0])
        made[0].close()


@pytest.fixture
def client(broker):
    """Its clients, as they see a server whose workers are away."""
    with client_of(broker) as client:
        yield client


def test_a_late_answer_is_a_504(client):
    """A request has its answer within the time limit, or is told that it has none."""
    answer = client.post("/predict", json={"x": 1})

    assert 504 == answer.status_code
    assert "no answer within 0.3 s" == answer.json()["error"]
    assert "1" == answer.headers["retry-after"]


def test_without_workers_it_lives_and_is_not_ready(client):
    """A balancer can tell the two apart."""
    assert (200, {"status": "ok"}) == _both(client.get("/healthz"))
    assert (503, {"error": "no worker has its handle loaded"}) == _both(client.get("/readyz"))


def test_a_broker_that_is_away_is_a_503(tmp_path):
    """A restart is waited for, but not for as long as the time limit."""
    with client_of(f"redis+socket://{tmp_path}/none.sock", time_limit=60) as client:
        status, body = _both(client.post("/predict", json={}))
        assert (503, "the broker cannot be reached") == (status, body["error"])
        assert "the broker cannot be reached" in client.get("/readyz").json()["error"]


def test_a_body_that_is_too_large_is_a_413(client, monkeypatch):
    """It is not read to its end."""
    monkeypatch.setattr(posted, "LARGEST_BODY", 10)

    assert (413, {"error": "the body is larger than 10 bytes"}) == _both(
        client.post("/predict", content=b'{"x": 123456}')
    )


def test_a_large_body_is_not_parsed_by_the_web_server(client, monkeypatch):
    """The loop that answers the others leaves it to the workers, as it leaves what is none."""
    parsed, own = [], json.loads
    monkeypatch.setattr(
        json, "loads", lambda text, **how: parsed.append(len(text)) or own(text, **how)
    )
    answers = [
        client.post("/predict", content=body)
        for body in (json.dumps({"x": [0.5] * 100_000}), "[" * 100_000)
    ]

    assert [504, 504] == [answer.status_code for answer in answers]
    assert [] == [length for length in parsed if length > 50_000]


def test_what_is_not_there_is_told_in_json(client):
    """Other paths and methods, too."""
    assert (404, {"error": "Not Found"}) == _both(client.get("/nothing"))
    assert (405, {"error": "Method Not Allowed"}) == _both(client.get("/predict"))


def test_an_answer_that_is_no_json_is_a_500(client, monkeypatch):
    """A number that JSON has not, say."""
    answered = AsyncMock(return_value=float("nan"))
    monkeypatch.setattr(web, "_sent", AsyncMock(side_effect=lambda it: it.close() or answered()))
    status, body = _both(client.post("/predict", json={}))

    assert 500 == status
    assert "what the handle returned is no JSON" in body["error"]


def _both(answer):
    return answer.status_code, answer.json()


def test_it_listens_where_it_is_told(monkeypatch, tmp_path):
    """Host and port come from the file that the environment names."""
    path = tmp_path / "serve.json"
    path.write_text(ServeConfig("H", queue="q", host="::1", port=7, broker="redis://h").to_json())
    monkeypatch.setenv(app.CONFIG, str(path))
    told = {}
    web.main(lambda _app, **options: told.update(options))

    assert ("::1", 7) == (told["host"], told["port"])


def test_a_process_without_configuration_says_how_it_is_started(monkeypatch):
    """Somebody may start it by hand."""
    monkeypatch.delenv(app.CONFIG, raising=False)

    with pytest.raises(ConfigurationError, match="celery batch serve"):
        app.config_of_process()


def test_the_web_servers_task_has_no_handle():
    """Called in a process that only sends, it says where the handle is."""
    config = ServeConfig("H", queue="q", broker="memory://")
    task = app.make_task(app.make_app(config), config)

    with pytest.raises(ConfigurationError, match=r"q\.predict runs in the workers"):
        task([{}])
