"""What a worker says at its start of batch tasks that are not routed to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.worker.bootsteps import log_not_loaded


def same(x):
    """Return each input."""
    return x


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app with a batch task, and an ordinary one that has a queue of its own."""
    with Celery("unrouted", set_as_current=False) as app:
        app.task(base=BatchTask, name="batched")(same)
        app.task(name="mailed")(same)
        app.conf.task_routes = {"mailed": "mail"}
        app.finalize()
        yield app


def test_a_queue_that_no_task_is_routed_to(app: Celery, caplog: pytest.LogCaptureFixture):
    """Such a queue is only named at calls, which may be those of batch tasks."""
    app.amqp.queues.select(["slow"])
    with caplog.at_level(logging.INFO):
        log_not_loaded(app, [])

    assert "-Q slow: no batch task is routed" in caplog.text


@pytest.mark.parametrize("queue", ["mail", "celery"])
def test_a_queue_that_has_its_tasks(app: Celery, caplog: pytest.LogCaptureFixture, queue: str):
    """A worker of queues that tasks are routed to is what it is meant to be."""
    app.amqp.queues.select([queue])
    with caplog.at_level(logging.INFO):
        log_not_loaded(app, [app.tasks["batched"]] if queue == "celery" else [])

    assert not caplog.text
