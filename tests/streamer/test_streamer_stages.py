"""Streamers of a model with `collate` and `uncollate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_batch import ModelError
from celery_batch.runtime.registry import model_calls
from celery_batch.runtime.stages import has_stages
from celery_batch.streamer import Streamer, ThreadedStreamer
from celery_batch.streamer.redis_worker import model_class_of
from tests.apps.models.streamer_models import Staged


@pytest.fixture(scope="module")
def process() -> Iterator[Streamer]:
    """A streamer with one process."""
    with Streamer(Staged, 2) as made:
        yield made


def test_process_collates_the_next_batch_meanwhile(process: Streamer):
    """While `predict` waits for the next batch to be collated, that happens."""
    first, second = process.submit(["after b", "a"]), process.submit(["b", "c"])

    assert [("after b", True), ("a", True)] == first.result(30)
    assert [("b", True), ("c", True)] == second.result(30)


def test_items_that_cannot_be_collated_fail_alone(process: Streamer):
    """Also where they were collated beside another batch; and the process goes on."""
    futures = [process.submit([text]) for text in ("after d", "d", "odd", "e", "leave", "f")]

    assert [[("after d", True)], [("d", True)]] == [each.result(30) for each in futures[:2]]
    with pytest.raises(ValueError, match="cannot collate this"):
        futures[2].result(30)
    with pytest.raises(ModelError, match="broke off: SystemExit: collate has had enough"):
        futures[4].result(30)
    assert [[("e", True)], [("f", True)]] == [futures[3].result(30), futures[5].result(30)]


def test_thread_calls_the_stages_one_after_the_other():
    """A streamer in this process answers as one in another does."""
    with ThreadedStreamer(Staged, 2) as streamer:
        assert [("a", True), ("b", True), ("c", True)] == streamer.predict(["a", "b", "c"])
        with pytest.raises(ValueError, match="cannot collate this"):
            streamer.predict(["odd"])


@pytest.mark.parametrize("given", [Staged, Staged()], ids=["class", "instance"])
def test_worker_on_redis_has_the_stages(given: Any):
    """Its task runs them where a worker's do."""
    kind = model_class_of(given)
    model = kind()
    model.load("cpu")

    assert has_stages(kind)
    assert [("a", True)] == model_calls(model)(["a"])
