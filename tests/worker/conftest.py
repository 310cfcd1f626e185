"""A scheduler on a pool that runs a batch when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state
from celery.worker import state
from kombu.asynchronous import Hub

from celery_batch import BatchTask
from celery_batch.testing import ManualClock
from celery_batch.worker.scheduling import task_queue
from tests.worker.doubles import Pool, Worker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The time that requests arrive and batches leave by."""
    clock = ManualClock(100.0)
    monkeypatch.setattr(task_queue, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """Batch tasks of several sizes, all with a max_wait of 10 s and a linger of 2 s."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    app = Celery("shop", set_as_current=False)
    for name, size in {"pairs": 2, "trios": 3, "single": 1, "crowds": 40}.items():
        options = {"max_batch_size": size, "max_wait": 10.0, "linger": 2.0}
        app.task(base=BatchTask, name=name, **options)(same)
    return app


def same(x):
    """Return what came."""
    return x


@pytest.fixture
def start(
    app: Celery,
    clock: ManualClock,  # noqa: ARG001 (task queues read it)
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Worker]]:
    """Start a worker on a pool; state that Celery keeps per process is put back afterwards."""

    def started(pool: Any, hub: Hub | None = None) -> Worker:
        worker = Worker(app, pool, hub)
        monkeypatch.setattr(
            "celery_batch.worker.scheduling.scheduler.BatchTimer", worker.make_timer
        )
        worker.start()
        return worker

    before = set(state.reserved_requests)
    yield started
    for request in set(state.reserved_requests) - before:
        state.task_ready(request)


@pytest.fixture
def pool() -> Pool:
    """A pool of one process."""
    return Pool()


@pytest.fixture
def worker(start: Callable[..., Worker], pool: Pool) -> Worker:
    """A worker of one process, on a transport without an event loop."""
    return start(pool)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An event loop as Celery's worker has it."""
    hub = Hub()
    yield hub
    hub.close()
