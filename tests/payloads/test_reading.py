"""Celery's own tracer reads what is stored beside a message, or says why it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from celery import Celery
from celery.app.trace import trace_task
from kombu.exceptions import OperationalError

from celery_batch import BatchTask, MessageTooLarge
from celery_batch.errors import InvalidPayload
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import StoreError
from celery_batch.payloads.values import Payloads, take_out
from celery_batch.protocol import PAYLOADS

LARGE = np.arange(20_000, dtype="f4")


@pytest.fixture
def app(tmp_path: Any) -> Any:
    """An app whose payloads are files, and whose task tries again after any error."""
    with Celery("read", broker="memory://", backend="cache+memory://") as app:
        app.conf.batch_payload_store = f"file://{tmp_path}"

        @app.task(base=BatchTask, name="read.sums", shared=False, autoretry_for=(Exception,))
        def sums(x):
            return [float(each.sum()) for each in x]

        yield app


def traced(app: Any, header: Any = None, *, is_stored: bool = True) -> Any:
    """Trace a call with a large argument; return its value or its error."""
    payloads = Payloads()
    args = [take_out(LARGE, 1, payloads, takes_bytes=True)]
    reference = payloads.reference()
    store: Any = AppPayloads.of(app).store
    if store is not None and is_stored:
        store.put(reference.key("a"), payloads.data, 60)
    task = app.tasks["read.sums"]
    request = {"id": "a", "task": task.name, "delivery_info": {}, "is_eager": False, "retries": 0}
    request |= {"called_directly": False, PAYLOADS: header or list(reference)}
    trace_task(task, "a", args, {}, request, app=app)
    return app.AsyncResult("a").result


def test_a_call_with_stored_values(app: Any):
    """It runs as a batch of one."""
    assert float(LARGE.sum()) == traced(app)


@pytest.mark.parametrize(
    ("header", "settings", "kind", "words"),
    [
        (None, {}, InvalidPayload, "gone"),
        ("x", {}, InvalidPayload, "a nonce"),
        (None, {"batch_payload_store": False}, InvalidPayload, "has no payload store"),
        (None, {"batch_max_payload_size": 1000}, MessageTooLarge, "80000 bytes"),
    ],
    ids=["gone", "malformed", "no store", "too large"],
)
def test_values_that_cannot_be_read(app: Any, header: Any, settings: Any, kind: Any, words: str):
    """The call fails with the reason, and is not tried again."""
    app.conf.update(settings)
    found = traced(app, header, is_stored=False)

    assert isinstance(found, kind)
    assert words in str(found)


def test_a_store_that_cannot_be_reached(app: Any, monkeypatch: pytest.MonkeyPatch):
    """It is asked again for a while, and then the call fails."""
    tries: list[Any] = []

    def get(*about: Any) -> Any:
        tries.append(about)
        raise StoreError("away")

    monkeypatch.setattr("celery_batch.payloads.store.DirectoryPayloads.get", get)
    monkeypatch.setattr(
        type(app.backend),
        "retry_policy",
        {"max_retries": 2, "interval_start": 0, "interval_step": 0, "interval_max": 0},
    )
    found = traced(app)

    assert isinstance(found, OperationalError)
    assert "away" in str(found)
    assert len(tries) > 1
