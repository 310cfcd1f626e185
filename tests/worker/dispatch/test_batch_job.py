"""A batch in the pool, and the handlers that are called for its requests."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from celery_batch import BatchTask
from celery_batch.testing import ManualClock
from celery_batch.worker.dispatch.follow_up import BatchEnd
from celery_batch.worker.executor.executor import run_batch
from tests.worker.conftest import same
from tests.worker.doubles import Call, Pool, Worker


def test_batch_goes_to_the_pool_as_one_job(worker: Worker, pool: Pool):
    """A full batch is one call of the pool, with each request's encoded body and no arguments."""
    worker.send("pairs", "a", "b")
    (sent,) = pool.sent

    assert (run_batch, "pairs", ["a", "b"]) == (sent.target, sent.name, sent.ids)
    assert {"id": "a"} == sent.deliveries[0].request
    assert b"[]" == sent.deliveries[0].body


def test_batch_is_lone_while_nobody_runs_or_waits_beside_it(worker: Worker, pool: Pool):
    """The pool process is told so, since it need not prepare for a next batch."""
    worker.send("pairs", "a", "b", "c", "d")

    assert [True, False] == [sent.deliveries.is_lone for sent in pool.sent]


def test_each_requests_handlers_are_called(worker: Worker, pool: Pool):
    """What the pool reports of a batch reaches each of its requests, and frees the slot."""
    worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(77, 1.5)
    pool.sent[0].timeout_callback(True, 9.0)  # noqa: FBT003 (the pool's signature)
    pool.sent[0].callback(BatchEnd([(0, "A", 0.1), (0, "B", 0.1)]))

    assert [
        ("a", "accepted", 77, 1.5),
        ("b", "accepted", 77, 1.5),
        ("a", "timeout", True, 9.0),
        ("b", "timeout", True, 9.0),
        ("a", "settled", (0, "A", 0.1)),
        ("a", "acknowledged"),
        ("b", "settled", (0, "B", 0.1)),
        ("b", "acknowledged"),
    ] == worker.events
    assert 0 == worker.in_flight


def test_starts_of_a_batch_that_was_read_ahead_wait_for_the_model(worker: Worker, pool: Pool):
    """They are announced once, beside the model, which does not run what was revoked."""
    a, b, c = worker.send("trios", "a", "b", "c")
    b.is_done = True
    announce = pool.sent[0].accept_callback(77, 1.5, is_read_ahead=True)

    assert ({"b"}, []) == (pool.sent[0].deliveries.revoked, worker.ids("accepted"))
    announce()
    assert [a.id, c.id] == worker.ids("accepted")


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_start_of_an_adopted_request_is_announced_once(worker: Worker, pool: Pool, when: str):
    """Whether it was delivered again before or after the start of its batch was announced."""
    a, _ = worker.send("pairs", "a", "b")
    job = pool.sent[0].accept_callback.__self__
    announce = pool.sent[0].accept_callback(77, 1.5, is_read_ahead=True)
    again = Call("a", worker.events)
    if when == "after":
        announce()
        worker.events.clear()
    assert job.adopt(again)
    if when == "before":
        announce()

    assert (["a", "b"] if when == "before" else ["a"]) == worker.ids("accepted")
    assert again in job.requests
    assert a not in job.requests


def test_an_error_of_one_request_does_not_affect_the_others(
    worker: Worker, pool: Pool, caplog: pytest.LogCaptureFixture
):
    """A handler that fails is logged; the others are called, and the slot is free."""
    worker.send("trios", "a", "b", "c")
    pool.sent[0].callback(BatchEnd([(0, "A", 0.1), "explode", (0, "C", 0.1)]))

    assert ["a", "c"] == worker.ids("settled")
    assert ["b"] == worker.ids("marked failed")
    assert ["a", "b", "c"] == worker.ids("acknowledged")
    assert ["Could not finish shop.task[b]"] == caplog.messages
    assert 0 == worker.in_flight


def test_an_answer_for_requests_that_were_given_up_is_ignored(worker: Worker, pool: Pool):
    """Their messages are with the broker: nothing of them is stored or acknowledged."""
    calls = worker.send("pairs", "a", "b")
    pool.sent[0].callback.__self__.submitted = False  # as while another thread hands it over
    worker.scheduler.close(restarting=True)
    pool.sent[0].callback(BatchEnd([(0, "A", 0.1), (0, "B", 0.1)]))

    assert (0, []) == (worker.in_flight, worker.events)
    assert not set(calls) & set(state.reserved_requests)


def test_an_answer_of_another_length_fails_each_request(worker: Worker, pool: Pool):
    """Each caller gets an answer, and the slot is free."""
    worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(77, 1.5)
    pool.sent[0].callback(BatchEnd([(0, "A", 0.1)]))

    assert ["a", "b"] == worker.ids("failed")
    assert "1 results for 2 requests" in str(worker.events[-1][2].exception)
    assert 0 == worker.in_flight


@pytest.mark.parametrize("is_read_ahead", [False, True])
def test_no_request_is_dropped_of_a_batch_that_is_handed_over(
    start: Callable[..., Worker], *, is_read_ahead: bool
):
    """Another thread may find then that other workers took its messages: all of it runs."""

    class Interrupted(Pool):
        def apply_async(self, target: Callable[..., Any], args: Any, **options: Any) -> Any:
            worker.scheduler.drop({"a"})
            return super().apply_async(target, args, **options)

    pool = Interrupted()
    worker = start(pool)
    task_queue = worker.scheduler.task_queue(worker.app.tasks["trios"])
    for name in "abc":
        call = Call(name, worker.events, "trios")
        call.message = SimpleNamespace(delivery_tag=name)
        worker.scheduler.add(task_queue, call)
    pool.sent[0].accept_callback(77, 1.5, is_read_ahead=is_read_ahead)
    ran = [delivery.task_id for delivery in pool.sent[0].deliveries]
    pool.finish()

    assert ["a", "b", "c"] == ran == worker.ids("settled") == worker.ids("acknowledged")
    assert 0 == worker.in_flight


def test_batch_of_revoked_requests_gives_its_place_back(worker: Worker, pool: Pool):
    """When no request is left to run, the reserved process and the slot are free again."""
    (a,) = worker.send("pairs", "a")
    a.is_revoked = True
    revoke_on_arrival = Call("b", worker.events)
    revoke_on_arrival.is_revoked = True
    worker.scheduler.add(worker.scheduler.task_queue(worker.app.tasks["pairs"]), revoke_on_arrival)

    assert [] == pool.batches
    assert (0, 1) == (worker.in_flight, worker.released)

    worker.send("pairs", "c", "d", "e", "f")

    assert [["c", "d"], ["e", "f"]] == pool.batches


def test_closing_pool_leaves_messages_with_the_broker(worker: Worker, pool: Pool):
    """A pool that takes nothing more occupies no slot, and no handler is called."""
    pool.closing = True
    worker.send("pairs", "a", "b")

    assert 0 == worker.in_flight
    assert [] == worker.events


def test_pool_of_threads_that_is_closing_leaves_messages_too(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
):
    """It raises an error, which is not logged as one."""

    class Closed(Pool):
        def apply_async(self, *_: Any, **__: Any) -> None:
            monkeypatch.setattr(state, "should_stop", 0)
            raise RuntimeError("cannot schedule new futures after shutdown")

    worker = start(Closed())
    worker.send("pairs", "a", "b")

    assert 0 == worker.in_flight
    assert [] == worker.events


def test_solo_pool_runs_within_the_call(start: Callable[..., Worker]):
    """It returns None as well, but its batch has run, and is settled once."""

    class Solo(SoloPool):
        def apply_async(self, _: Any, args: Any, **options: Any) -> None:
            options["accept_callback"](1, 0.0)
            options["callback"](BatchEnd([(0, "done", 0.0) for _ in args[1]]))

    worker = start(Solo())
    worker.send("pairs", "a", "b", "c", "d")

    assert ["a", "b", "c", "d"] == worker.ids("settled")
    assert 0 == worker.in_flight


@pytest.mark.parametrize(
    ("reads_singly", "batches"), [(True, [1, 3, 3]), (False, [1, 1, 1, 1, 1, 1, 1])]
)
def test_a_burst_forms_batches_between_which_nothing_is_read(
    app: Celery,
    start: Callable[..., Worker],
    clock: ManualClock,
    *,
    reads_singly: bool,
    batches: list[int],
):
    """Where a batch runs in the loop that reads messages singly, a lone call does not undo it."""
    app.task(base=BatchTask, name="bursts", max_batch_size=3, max_wait=10.0)(same)
    sizes = []

    class Solo(SoloPool):
        def apply_async(self, _: Any, args: Any, **options: Any) -> None:
            sizes.append(len(args[1]))
            options["accept_callback"](1, 0.0)
            options["callback"](BatchEnd([(0, "done", 0.0) for _ in args[1]]))

    worker = start(Solo())
    worker.scheduler.reads_singly = reads_singly
    worker.send("bursts", "a")
    clock.advance(0.002)
    worker.scheduler.dispatch()
    worker.send("bursts", *"bcdefg")

    assert batches == sizes
