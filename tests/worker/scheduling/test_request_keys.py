"""The keys of requests in a worker, and how many requests it fetches to have some of each key."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import WorkerShutdown

from celery_batch import BatchTask
from celery_batch.batching.batch import LEAST_URGENT
from celery_batch.serialization.arrays import EncodedArray
from celery_batch.serialization.typed_json import StoredValue
from celery_batch.telemetry.meter import Tally
from celery_batch.worker.scheduling.prefetch import messages_per_process
from celery_batch.worker.scheduling.task_queue import KEY_WINDOW, TaskQueue
from tests.worker.scheduling.test_request_cost import request


def make_task(broker: str = "memory://", **options: Any) -> Any:
    """Return a task whose batches have one language."""
    app = Celery("keys", set_as_current=False, broker=broker)

    @app.task(base=BatchTask, **{"name": "keys.task", "batch_by": "language", **options})
    def task(text: Any, language: Any = "en") -> Any:  # noqa: ARG001
        return text

    return task


def queue(task: Any) -> TaskQueue:
    """Return the task queue of a worker."""
    return TaskQueue(task, threading.RLock())


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_whatever_a_chunk_s_keys_do_it_waits(error):
    """An error would end the worker's event loop, and the message would come again."""

    class Key:
        __hash__ = object.__hash__

        def __ne__(self, other: object) -> bool:
            raise error

    task = make_task(batch_by=lambda *_: Key())
    task_queue = queue(task)
    task_queue.add(request(task, ["a", "b"], ["x", "y"], rows=2))

    assert not task_queue.is_empty


def test_a_worker_that_is_to_stop_computes_no_key():
    """A signal's handler raises this in whatever runs."""

    def stopped(*_: Any) -> None:
        raise WorkerShutdown

    task = make_task(batch_by=stopped)
    with pytest.raises(WorkerShutdown):
        queue(task).add(request(task, "a"))


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_function_that_needs_an_array_s_values_is_named(is_stored, caplog):
    """Where the worker forms batches, it has none: each batch has one item, as the log says."""
    array = StoredValue(0, "ndarray", "<i8", (2,)) if is_stored else EncodedArray(
        "ndarray", "<i8", (2,), bytes(16)
    )  # fmt: skip
    task = make_task(name=f"keys.stored-{is_stored}", batch_by=lambda text, _: int(text[0]))
    task_queue = queue(task)
    for wrong in ("no number", array, array):
        task_queue.add(request(task, wrong))

    assert 1 == len(caplog.records)
    assert f"{task.name}.batch_by: the function needs more than the worker's main" in caplog.text
    assert "object is not subscriptable" in caplog.text


def test_a_key_is_computed_once():
    """Also for a request that waits again."""
    calls = []
    task = make_task(batch_by=lambda text, _: calls.append(text))
    task_queue, made = queue(task), request(task, "a")
    made.batch_key = "known"
    task_queue.add(made)

    assert [] == calls


def test_more_is_read_ahead_while_many_keys_wait():
    """A batch's worth for each, as far as the broker has that many for this worker."""
    task = make_task(max_batch_size=4)
    task_queue = queue(task)
    found = []
    for n in range(3):
        task_queue.add(request(task, "a", n))
        found.append(task_queue.capacity_left(3, [], LEAST_URGENT, 1000))
    found.append(task_queue.capacity_left(3, [], LEAST_URGENT, 15))
    for n in range(200):
        task_queue.add(request(task, "a", n))
    many = task_queue.capacity_left(3, [], LEAST_URGENT, 10_000)

    assert [15, 18, 21, 15] == found
    assert 4 * (3 + KEY_WINDOW) - 203 == many
    assert 200 == task_queue.report(Tally())["keys"]


def test_what_is_read_ahead_comes_a_batch_at_a_time():
    """A round trip for each message would cost more than all else."""
    task = make_task(max_batch_size=4)
    task_queue = queue(task)
    most = 4 * (3 + KEY_WINDOW)
    found = []
    for n in range(most):
        task_queue.add(request(task, str(n), n))
        if n >= most - 6:
            found.append(task_queue.capacity_left(3, [], LEAST_URGENT, 10_000))

    assert [5, 4, 0, 0, 0, 0] == found


def test_large_bodies_are_not_read_ahead():
    """What waits has a bound in bytes."""
    task = make_task(max_batch_size=4)
    task_queue = queue(task)
    for n in range(100):
        task_queue.add(request(task, "a", n, body=b"x" * (1 << 20)))

    assert 0 == task_queue.capacity_left(3, [], LEAST_URGENT, 10_000)


@pytest.mark.parametrize(
    ("broker", "ahead"), [("redis://", 5 + KEY_WINDOW), ("amqp://", 5), ("memory://", 5)]
)
def test_the_prefetch_has_room_for_what_is_read_ahead(broker, ahead):
    """On Redis it is only a bound; elsewhere the worker holds as much, so the option says it."""
    task = make_task(broker, max_batch_size=4, sort_window=5)

    assert 4 * (3 + ahead) == messages_per_process([task])


def test_a_task_without_the_option_reports_no_keys():
    """Its report is as ever."""
    assert "keys" not in queue(make_task(batch_by=None)).report(Tally())
