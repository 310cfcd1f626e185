"""Equal requests in the task queue of a worker."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.base import BasePool
from celery.worker.request import create_request_cls

from celery_batch import BatchTask
from celery_batch.batching.batch import LEAST_URGENT, Batch
from celery_batch.protocol import ROWS
from celery_batch.telemetry.meter import Tally
from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.intake.request import BatchRequest
from celery_batch.worker.scheduling.prefetch import messages_per_process
from celery_batch.worker.scheduling.task_queue import TaskQueue
from tests.worker.intake.test_request import Message


@pytest.fixture
def task() -> Any:
    """A task whose equal items share a row, four in a batch."""
    app = Celery("duplicates", set_as_current=False, broker="memory://")

    @app.task(base=BatchTask, name="duplicates.task", dedupe=True, max_batch_size=4)
    def task(x: Any, unit: Any = "m") -> Any:
        return [*zip(x, unit, strict=True)]

    return task


@pytest.fixture
def task_queue(task: Any) -> TaskQueue:
    """The queue of a worker for it."""
    return TaskQueue(task, threading.RLock())


def request(task: Any, *args: Any, rows: int | None = None, body: bytes = b"[]", **kwargs: Any):
    """Return a request of a task as a worker makes it."""
    message = Message(task=task.name, **({} if rows is None else {ROWS: rows}))
    message.payload, message.body = (list(args), kwargs, {}), body
    kind = create_request_cls(BatchRequest, task, BasePool(), "here", None, app=task.app)
    return kind(message, app=task.app, task=task, headers=message.headers, body=message.body,
                utc=True, decoded=False)  # fmt: skip


def add(task_queue: TaskQueue, *requests: Any) -> None:
    """Add requests, each with an id and a delivery tag of its own."""
    for number, each in enumerate(requests):
        each.message.delivery_tag = str(number)
        each.id = f"id{number}"
        task_queue.add(each)


def next_batch(task_queue: TaskQueue) -> Batch[Any]:
    """Return the next batch, which is full."""
    batch = task_queue.next_batch(full_only=True, earns_share=True)
    assert isinstance(batch, Batch)
    return batch


def test_duplicates_need_no_room(task: Any, task_queue: TaskQueue):
    """A batch has four rows and more requests; the worker can use as many more messages."""
    requests = [request(task, n) for n in (1, 1, 2, 1, 3, 2)]
    add(task_queue, *requests)
    waiting, left = (
        task_queue.report(Tally())["waiting"],
        task_queue.capacity_left(3, [], LEAST_URGENT),
    )
    task_queue.add(request(task, 4))
    batch, history = next_batch(task_queue), task_queue.history

    assert (6, 9) == (waiting, left)
    assert (7, 4) == (len(batch), batch.rows)
    assert set(requests) <= set(batch.items)
    assert (7, 4, 4) == (history.requests, history.rows, history.work)
    assert 0 == task_queue.report(Tally())["waiting"]


def test_a_job_counts_equal_requests_once(task: Any, task_queue: TaskQueue):
    """Also when the first of them is left out: the next one is its row."""
    requests = [request(task, n) for n in (1, 2, 1, 3, 4)]
    add(task_queue, *requests)
    job = BatchJob(task, next_batch(task_queue), None, task_queue.policy)  # type: ignore[arg-type]
    work = job.work
    job.drop({"0"})

    assert (4, 4, 4) == (work, job.work, job.rows)
    assert 4 == len(job)


def test_all_go_back_to_the_broker(task: Any, task_queue: TaskQueue):
    """When the worker stops."""
    requests = [request(task, n) for n in (1, 1, 2)]
    add(task_queue, *requests)

    assert set(requests) == set(task_queue.clear())
    assert task_queue.is_empty


def test_there_is_room_for_as_many_duplicates_as_rows(task: Any):
    """So that batches are full where half of the items are repeated."""
    batches = 3

    assert 2 * batches * 4 == messages_per_process([task])


def test_an_operator_may_turn_it_off_and_on(task: Any, task_queue: TaskQueue):
    """What waits already is a row of its own then, and only what comes later is compared."""
    add(task_queue, *[request(task, n) for n in (1, 1, 2)])
    own = task_queue.policy
    task_queue.policy = replace(own, dedupe=False)
    task_queue.add(request(task, 2))
    separate = next_batch(task_queue)
    task_queue.policy = own
    add(task_queue, *[request(task, n) for n in (3, 3, 4, 5, 6)])
    shared = next_batch(task_queue)
    listener: Any = None
    jobs = [
        BatchJob(task, batch, listener, policy)
        for batch, policy in ((separate, replace(own, dedupe=False)), (shared, own))
    ]

    assert [(4, 4), (5, 4)] == [(len(batch), batch.rows) for batch in (separate, shared)]
    assert [4.0, 4.0] == [job.work for job in jobs]
    assert [(False, None), (True, None)] == [job._payload().reuse for job in jobs]
