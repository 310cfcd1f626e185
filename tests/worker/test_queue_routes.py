"""Which queues a worker knows, and which of them it consumes."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.exceptions import QueueNotFound

from celery_batch import BatchTask
from celery_batch.worker.scheduling.routing import queue_of, routed_queues, served_tasks


def _same(items: list[Any]) -> list[Any]:
    return items


def test_queues_of_other_workers_are_not_consumed():
    """A worker without -Q consumes its own queue, wherever the app's tasks are routed."""
    with Celery("routes", broker="memory://", set_as_current=False) as app:
        app.conf.task_routes = {"there": "other", "further": {"queue": "third"}}
        tasks = {
            name: app.task(base=BatchTask, name=name, shared=False)(_same)
            for name in ("here", "there", "further")
        }
        app.finalize()

        assert {"celery", "other", "third"} == routed_queues(app)
        assert ["here"] == [task.name for task in served_tasks(app)]
        assert "other" == queue_of(app, tasks["there"])
        assert {"celery"} == set(app.amqp.queues.consume_from)


def test_an_unknown_queue_is_an_error_where_none_is_made():
    """Celery's own error says so, as for the caller."""
    with Celery("routes", broker="memory://", set_as_current=False) as app:
        app.conf.update(task_routes={"there": "other"}, task_create_missing_queues=False)
        task = app.task(base=BatchTask, name="there", shared=False)(_same)

        with pytest.raises(QueueNotFound):
            queue_of(app, task)
