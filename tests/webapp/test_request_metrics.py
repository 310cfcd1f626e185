"""The metrics of the FastAPI app's requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from webapp.metrics import MetricsMiddleware

_TOTAL, _SECONDS = "http_requests_total", "http_request_duration_seconds_count"


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A client of an app whose requests are counted."""
    app = FastAPI()
    app.add_middleware(MetricsMiddleware)

    @app.get("/items/{number}")
    def _item(number: int) -> float:
        return 1 / number

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def _value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize(
    ("path", "status", "handler"),
    [
        ("/items/7", "2xx", "/items/{number}"),
        ("/items/seven", "4xx", "/items/{number}"),
        ("/items/0", "5xx", "/items/{number}"),
        ("/elsewhere", "4xx", "none"),
    ],
)
def test_requests_are_counted(client: TestClient, path: str, status: str, handler: str):
    """By route and class of status, an exception of the view as the 500 that it becomes."""
    total = {"method": "GET", "status": status, "handler": handler}
    seconds = {"method": "GET", "handler": handler}
    before = _value(_TOTAL, **total), _value(_SECONDS, **seconds)
    response = client.get(path)

    assert status[0] == str(response.status_code)[0]
    assert (before[0] + 1, before[1] + 1) == (_value(_TOTAL, **total), _value(_SECONDS, **seconds))


_ANSWER_ONE = """
import asyncio
from webapp.metrics import MetricsMiddleware, exposition

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})

async def send(message):
    pass

asyncio.run(MetricsMiddleware(app)({"type": "http", "method": "GET"}, None, send))
print(exposition().decode())
"""


def test_processes_are_counted_together(tmp_path: Any):
    """With PROMETHEUS_MULTIPROC_DIR, whichever process is asked."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", _ANSWER_ONE]
    texts = [subprocess.check_output(command, env=env, text=True) for _ in range(2)]
    totals = [
        sample.value
        for family in text_string_to_metric_families(texts[1])
        for sample in family.samples
        if sample.name == _TOTAL
    ]

    assert [2.0] == totals
