"""Since when requests of a task with a latency target count."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.protocol import SENT
from celery_batch.worker.scheduling.target import sent_at
from celery_batch.worker.scheduling.task_queue import TaskQueue
from tests.worker.scheduling.test_request_cost import request as request_of


def request(sent: Any, **fields: Any) -> Any:
    """Return a request that arrived a moment ago."""
    return SimpleNamespace(arrived=time.monotonic() - 0.1, request_dict={SENT: sent, **fields})


def test_a_request_counts_from_its_call():
    """Its message says when that was, in milliseconds."""
    made = request(round((time.time() - 1000) * 1000))

    assert pytest.approx(time.monotonic() - 1000, abs=60) == sent_at(made)


@pytest.mark.parametrize("sent", [None, "now", True, 0, -1, 10**400, -(10**400), 1.5])
def test_whatever_a_message_says_its_request_counts_from_its_arrival(sent: Any):
    """Anything may be written to a broker, and an error would end the worker's event loop."""
    made = request(sent)

    assert made.arrived == sent_at(made)


def test_a_request_with_an_eta_counts_from_its_arrival():
    """It was not meant to run before."""
    made = request(round((time.time() - 2) * 1000), eta="2030-01-01T00:00:00")

    assert made.arrived == sent_at(made)


def queue_of(target: float, **options: Any) -> TaskQueue:
    """Return the queue of a task whose batches take 0.1 s, however large they are."""
    app = Celery("target", set_as_current=False, broker="memory://")

    @app.task(base=BatchTask, name="target.task", target_latency=target, shed=True, **options)
    def task(item: Any, language: Any = "en") -> Any:  # noqa: ARG001
        return item

    found = TaskQueue(task, threading.RLock())
    assert found.target is not None
    for work in (1, 4) * 4:
        found.target.queue.model.observe(work, 0.1)
    return found


def test_the_batches_of_other_keys_go_before_a_request():
    """One whose key waits already has one batch less before it."""
    task_queue = queue_of(0.55, batch_by="language")
    for language in ("de", "fr", "it", "en"):
        task_queue.add(request_of(task_queue.task, "text", language))

    assert 0 == task_queue.late_by(request_of(task_queue.task, "text", "de"), 0)
    assert 0 < task_queue.late_by(request_of(task_queue.task, "text", "pl"), 0)


def test_a_request_that_equals_a_waiting_one_is_not_refused():
    """It leaves with that one, and adds no work."""
    task_queue = queue_of(0.2, max_batch_size=1, dedupe=True)
    task_queue.add(request_of(task_queue.task, "same"))

    assert 0 == task_queue.late_by(request_of(task_queue.task, "same"), 0)
    assert 0 < task_queue.late_by(request_of(task_queue.task, "other"), 0)
