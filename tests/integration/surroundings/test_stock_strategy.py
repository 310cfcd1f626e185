"""A worker of batch tasks without the strategy and the steps that make batches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from celery import Celery, signals

from celery_batch import BatchTask
from celery_batch.errors import InvalidPayload
from celery_batch.protocol import PAYLOADS
from tests.services.launcher import Launcher
from tests.services.shared_setup import eventually

LARGE = np.random.default_rng(1).random(20_000).astype("f4")


@pytest.fixture(scope="module")
def stock(launcher: Launcher) -> Any:
    """Return the task as a caller has it; its worker runs."""
    worker = launcher.worker("tests.apps.stock_worker", "-c", "1", "-P", "solo")
    assert "batches of up to" not in worker.log.read_text()
    app: Celery = launcher.client()

    @app.task(base=BatchTask, name="stock.doubled", shared=False)
    def doubled(x, word):
        """Only the worker's does anything."""

    with warnings.catch_warnings():
        # The shared tasks of modules that other tests have imported may have one name.
        warnings.filterwarnings("ignore", "Task name .* is already registered")
        app.finalize()
    return app.tasks["stock.doubled"]


def stored(launcher: Launcher, task_id: str = "") -> list[bytes]:
    """Return the keys of payloads."""
    return list(launcher.redis.scan_iter(f"celery-batch-payload-{task_id}*"))


def test_stored_values_are_read(launcher: Launcher, stock: Any):
    """Each call has its values, and its result comes back whole."""
    sent: list[Any] = []

    def note(headers: Any, **_: Any) -> None:
        sent.append(headers.get(PAYLOADS))

    signals.before_task_publish.connect(note)
    results = [stock.delay(n * LARGE, word="x") for n in range(3)]
    signals.before_task_publish.disconnect(note)
    assert 3 == len(sent)
    assert None not in sent

    for n, each in enumerate(results):
        assert np.array_equal(2 * n * LARGE, each.get(timeout=30))
        eventually(lambda task_id=each.id: not stored(launcher, task_id), "the end of the payload")


def test_a_retry_has_its_values(launcher: Launcher, stock: Any):
    """They are stored for the next try as a caller's are."""
    result = stock.delay(LARGE, word="again")

    assert np.array_equal(2 * LARGE, result.get(timeout=30))
    assert ["again", "again"] == [each for each in launcher.facts("doubled") if each == "again"]
    eventually(lambda: not stored(launcher, result.id), "the end of both payloads")


def test_values_that_are_gone(launcher: Launcher, stock: Any):
    """The call fails, without tries that could not find them either."""
    found = {"__type__": "batch-payload", "__value__": [0, "ndarray", "<f4", [4]]}
    result = stock.app.send_task(
        "stock.doubled", (found, "gone"), headers={PAYLOADS: ["a" * 16, [16], 1]}
    )

    with pytest.raises(InvalidPayload, match="gone"):
        result.get(timeout=30)
    assert "gone" not in launcher.facts("doubled")
    assert np.array_equal(2 * LARGE, stock.delay(LARGE, word="x").get(timeout=30))
