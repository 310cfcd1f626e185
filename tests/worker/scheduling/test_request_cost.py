"""What requests cost, and how many of them a worker fetches."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.base import BasePool
from celery.worker.request import create_request_cls

from celery_batch import BatchTask, ConfigurationError
from celery_batch.batching.batch import LEAST_URGENT
from celery_batch.config import policy_of
from celery_batch.payloads.values import Payloads, take_out
from celery_batch.protocol import ROWS
from celery_batch.serialization.typed_json import StoredValue
from celery_batch.worker.intake.request import BatchRequest
from celery_batch.worker.scheduling.task_queue import TaskQueue
from tests.worker.intake.test_request import Message


@pytest.fixture
def app() -> Celery:
    """An app without a broker."""
    return Celery("costs", set_as_current=False, broker="memory://")


def make_task(app: Celery, **options: Any) -> Any:
    """Return a task whose items cost what they say."""

    @app.task(base=BatchTask, name="costs.task", cost=lambda cost: cost, **options)
    def task(cost: Any) -> Any:
        return cost

    return task


def request(task: Any, *args: Any, rows: int | None = None, body: bytes = b"[]") -> Any:
    """Return a request of a task as a worker makes it."""
    message = Message(task=task.name, **({} if rows is None else {ROWS: rows}))
    message.payload, message.body = (args, {}, {}), body
    kind = create_request_cls(BatchRequest, task, BasePool(), "here", None, app=task.app)
    return kind(message, app=task.app, task=task, headers=message.headers, body=message.body,
                utc=True, decoded=False)  # fmt: skip


def queue(task: Any) -> TaskQueue:
    """Return the task queue of a worker."""
    return TaskQueue(task, threading.RLock())


@pytest.mark.parametrize(
    ("cost", "rows", "padded", "expected"),
    [
        (30, None, True, (30, 30)),
        (1e308, None, True, (100, 100)),
        ([1e308] * 32, 32, True, (100, 3200)),
        ([1e308] * 32, 32, False, (3200, 3200)),
        ([3, 5, None], 3, True, (5, 15)),
        ([3, 5, None], 3, False, (8, 8)),
        ("none", None, True, (0, 0)),
    ],
)
def test_no_row_counts_for_more_than_a_batch(app, cost, rows, padded, expected):
    """Whatever an item says it costs, the worker goes on; one without a cost fails later."""
    task = make_task(app, max_batch_cost=100, padded=padded)
    task_queue = queue(task)
    made = request(task, cost, rows=rows)
    task_queue.add(made)

    assert expected == (made.cost, made.work)
    assert task_queue.capacity_left(3, [], LEAST_URGENT) >= 0


def test_stored_bytes_cost_their_length(app):
    """As those in a message; they were batches of their own, whatever their length."""

    @app.task(base=BatchTask, name="costs.files", cost="file", max_batch_cost=100_000)
    def files(file: Any) -> Any:
        return file

    stored = take_out(bytes(9000), 8192, Payloads(), takes_bytes=True)
    made = request(files, StoredValue.from_json(stored.to_json()))
    queue(files).add(made)

    assert 9000 == made.cost


def test_a_cost_function_that_exits_ends_no_worker(app):
    """The request waits, and fails where the model runs."""
    task = make_task(app, max_batch_cost=100)
    task.__class__.cost = staticmethod(sys.exit)
    task_queue = queue(task)
    made = request(task, 3)
    task_queue.add(made)

    assert (0, False) == (made.cost, task_queue.is_empty)


def test_requests_that_are_set_aside_count_what_they_cost(app):
    """A paused task fetches no more than it could use."""
    task = make_task(app, max_batch_cost=100)
    task_queue = queue(task)
    for _ in range(10):
        task_queue.set_aside(request(task, 30))

    assert 0 == task_queue.capacity_left(3, [], LEAST_URGENT)
    assert 3 == task_queue.capacity_left(4, [], LEAST_URGENT)


def test_so_many_are_fetched_before_any_cost_is_known(app):
    """Whole batches where rows are counted; else those of a usual number of rows."""
    rows = app.task(base=BatchTask, name="costs.rows", max_batch_size=128)(_same)
    cost = make_task(app, max_batch_cost=100)

    assert 384 == queue(rows).capacity_left(3, [], LEAST_URGENT)
    assert 192 == queue(cost).capacity_left(3, [], LEAST_URGENT)


@pytest.mark.parametrize("cost", [0, 1])
def test_rows_limit_what_is_fetched_where_items_cost_little(app, cost):
    """A batch that leaves is replaced in one fetch; no more is held than batches have rows for."""
    task_queue = queue(make_task(app, max_batch_cost=1000, max_batch_size=4))
    found = []
    for _ in range(3):
        for _ in range(4):
            task_queue.add(request(task_queue.task, cost))
        found.append(task_queue.capacity_left(3, [], LEAST_URGENT))

    assert [8, 4, 0] == found


def test_more_are_read_ahead_only_to_choose_from(app):
    """As many as the broker has for this worker, and at most the window's worth."""
    sorts = queue(make_task(app, max_batch_cost=100, padded=True, sort_window=2))
    sorts.add(request(sorts.task, 50))
    plain = queue(sorts.task.app.task(base=BatchTask, name="costs.rows")(_same))

    assert [5, 7, 9, 9] == [
        sorts.capacity_left(3, [], LEAST_URGENT, ahead) for ahead in (0, 7, 9, 1000)
    ]
    assert plain.capacity_left(3, [], LEAST_URGENT) == plain.capacity_left(
        3, [], LEAST_URGENT, 1000
    )


def test_large_bodies_are_not_read_ahead(app):
    """What waits to be chosen from has a bound in bytes."""
    task_queue = queue(make_task(app, max_batch_cost=100, padded=True, sort_window=99))
    found = []
    for _ in range(66):
        task_queue.add(request(task_queue.task, 50, body=b"x" * (1 << 20)))
        found.append(task_queue.capacity_left(3, [], LEAST_URGENT, 1000))

    assert [0, 0] == found[-2:]
    assert found[-3] > 100


def test_a_running_worker_cannot_lose_its_limit(app):
    """Work is counted in cost then, and rows would mean something else."""
    task = make_task(app, max_batch_cost=100)

    assert 50 == policy_of(task, {"max_batch_cost": 50}).max_batch_cost
    with pytest.raises(ConfigurationError, match="max_batch_cost: must be a number above 0 while"):
        policy_of(task, {"max_batch_cost": None})
    with pytest.raises(ConfigurationError, match="no option that a running worker can change"):
        policy_of(task, {"padded": True})


def _same(item: list[Any]) -> list[Any]:
    return item
