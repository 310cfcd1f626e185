"""Which tasks' batches may be settled while another model runs."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.backends.cache import CacheBackend

from celery_batch import BatchTask
from celery_batch.worker.dispatch.job_submitter import may_overlap


class Called(BatchTask):
    """Has a call of its own."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do as any task."""
        return super().__call__(*args, **kwargs)


@pytest.fixture
def app() -> Celery:
    """An app of one batch task for each test."""
    return Celery("overlap", broker="memory://", backend="cache+memory://", set_as_current=False)


def same(x):
    """Return what came."""
    return x


def declared(app: Celery, **options: Any) -> Any:
    """Return a task with these options."""
    app.task(name="overlap.same", **{"base": BatchTask, "shared": False, **options})(same)
    return app.tasks["overlap.same"]


def test_batch_tasks_overlap(app: Celery):
    """Batch tasks do, and ordinary ones do not."""
    assert may_overlap(declared(app))
    assert not may_overlap(app.tasks["celery.backend_cleanup"])


def test_call_of_its_own_keeps_to_one_thread(app: Celery):
    """What it sets up may be there for its own thread only."""
    assert not may_overlap(declared(app, base=Called))


@pytest.mark.parametrize("how", ["given to the decorator", "put there later"])
def test_backend_of_its_own_keeps_to_one_thread(app: Celery, how: str):
    """Two threads would share it, however the task came by it."""
    backend = CacheBackend(app=app, backend="memory")
    if how == "put there later":
        task = declared(app)
        task.backend = backend
    else:
        task = declared(app, backend=backend)

    assert backend is task.backend
    assert not may_overlap(task)
