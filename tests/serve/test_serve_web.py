"""The web server in this process, without a worker."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from unittest.mock import AsyncMock

import jsonschema
import numpy as np
import pytest
from starlette.testclient import TestClient

from celery_batch.client.results.listener import close_listener
from celery_batch.errors import ConfigurationError, OutOfMemory, QueueFull
from celery_batch.serve import app, web
from celery_batch.serve.config import ServeConfig
from celery_batch.web.errors import task_error


@contextmanager
def client_of(broker, time_limit=1.0, **values):
    """Give the client of a server on some broker, and close its connections."""
    made = []
    config = ServeConfig(
        "H", queue=uuid.uuid4().hex, broker=broker, time_limit=time_limit, **values
    )
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
    """A request has its answer within the time limit, or a 504."""
    answer = client.post("/predict", json={"x": 1})

    assert 504 == answer.status_code
    assert "DeadlineExceeded" == answer.json()["error"]["type"]
    assert "no answer within 1 s" in answer.json()["error"]["message"]
    assert 36 == len(answer.json()["task_id"])
    assert "1" == answer.headers["retry-after"]


def test_without_workers_it_lives_and_is_not_ready(client):
    """A load balancer can distinguish the two."""
    assert (200, {"status": "ok"}) == _both(client.get("/healthz"))
    status, body = _both(client.get("/readyz"))

    (reason,) = body["reasons"].values()
    assert (503, False) == (status, body["ready"])
    assert "no worker" in reason


def test_a_broker_that_is_away_is_a_503(tmp_path):
    """A restart is waited for, but not for as long as the time limit."""
    with client_of(f"redis+socket://{tmp_path}/none.sock", time_limit=60) as client:
        status, body = _both(client.post("/predict", json={}))
        assert (503, "BrokerUnreachable") == (status, body["error"]["type"])
        status, body = _both(client.get("/readyz"))
        assert (503, ["broker"]) == (status, list(body["reasons"]))


def test_a_body_that_is_too_large_is_a_413(client, monkeypatch):
    """It is not read to its end."""
    monkeypatch.setattr(web, "LARGEST_BODY", 10)
    status, body = _both(client.post("/predict", content=b'{"x": 123456}'))

    assert (413, "MessageTooLarge") == (status, body["error"]["type"])
    assert "the body is larger than 10 bytes" == body["error"]["message"]


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


def test_unknown_paths_are_refused_in_json(client):
    """Other paths and methods, too."""
    missing, wrong = client.get("/nothing"), client.get("/predict")

    assert (404, "NotFound") == (missing.status_code, missing.json()["error"]["type"])
    assert (405, "MethodNotAllowed") == (wrong.status_code, wrong.json()["error"]["type"])
    assert "POST" == wrong.headers["allow"]


def test_arrays_of_a_handle_are_lists(client, monkeypatch):
    """Also within a dict; NaN is null in them."""
    answer = {"vector": np.array([1, np.nan], "f4"), "label": np.int64(3)}
    monkeypatch.setattr(web, "apredict", AsyncMock(side_effect=[[answer]]))

    assert (200, {"vector": [1, None], "label": 3}) == _both(client.post("/predict", json={}))


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        ([float("nan")], 500, "InternalServerError"),
        (task_error(ValueError("no face")), 422, "ValueError"),
        (task_error(TypeError("secret")), 500, "InternalServerError"),
        (QueueFull("secret", retry_after=3.5), 429, "QueueFull"),
        (OutOfMemory("secret"), 503, "OutOfMemory"),
    ],
)
def test_the_status_is_that_of_the_error(client, monkeypatch, caplog, outcome, status, kind):
    """As in any web server; what is the handle's own fault stands in the log, with its task."""
    side_effect = outcome if isinstance(outcome, Exception) else [outcome]
    monkeypatch.setattr(web, "apredict", AsyncMock(side_effect=side_effect))
    answer = client.post("/predict", json={})
    body = answer.json()

    assert (status, kind) == (answer.status_code, body["error"]["type"])
    assert "secret" not in answer.text
    assert (status == 429) == (answer.headers.get("retry-after") == "4")
    assert (status >= 500) == (body["task_id"] in caplog.text)


def test_a_full_queue_is_a_429(broker):
    """MaxQueue bounds what waits; a refusal says when to try again."""
    with client_of(broker, max_queue=1) as client:
        first = client.post("/predict", json={})
        second = client.post("/predict", json={})

    assert [504, 429] == [first.status_code, second.status_code]
    assert "QueueFull" == second.json()["error"]["type"]
    assert second.headers["retry-after"].isdecimal()


def test_metrics_count_requests_by_status(client):
    """Those of /predict, with the time that they took."""
    for body in (b"{", b"[", b"{}"):
        client.post("/predict", content=body)
    answer = client.get("/metrics")

    assert 200 == answer.status_code
    assert 'celery_batch_serve_requests_total{status="400"} 2.0' in answer.text
    assert 'celery_batch_serve_requests_total{status="504"} 1.0' in answer.text
    assert "celery_batch_serve_request_seconds_count 3.0" in answer.text


def test_the_openapi_document_describes_every_route(client):
    """With the body and the errors of each, as the server has them."""
    import schemathesis  # noqa: PLC0415 (takes a second: no other test waits for it)

    document = client.get("/openapi.json").json()
    schemathesis.openapi.from_dict(document).validate()
    predict = document["paths"]["/predict"]["post"]["responses"]
    answer = client.post("/predict", content=b"{")
    error = document["components"]["schemas"]["Error"]

    assert {"/predict", "/healthz", "/readyz"} == set(document["paths"])
    assert {"200", "400", "413", "422", "429", "500", "503", "504"} == set(predict)
    jsonschema.validate(answer.json(), error)


def _both(answer):
    return answer.status_code, answer.json()


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
