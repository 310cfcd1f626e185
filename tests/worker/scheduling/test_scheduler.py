"""Which batch gets the next slot, and what is given back when a connection ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.worker import state
from kombu.asynchronous import Hub

from celery_batch import BatchTask
from celery_batch.testing import ManualClock
from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.dispatch.follow_up import BatchEnd
from celery_batch.worker.scheduling import scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue
from tests.worker.conftest import same
from tests.worker.doubles import Call, Pool, Worker


def reserved() -> set[str]:
    """Return the ids that Celery counts as held by this worker."""
    return {request.id for request in state.reserved_requests}


def test_one_batch_is_ready_behind_the_running_one(worker: Worker, pool: Pool):
    """Two batches per process leave; more wait until one has ended."""
    worker.send("pairs", "a", "b", "c", "d", "e", "f")

    assert [["a", "b"], ["c", "d"]] == pool.batches

    pool.finish(0)

    assert [["a", "b"], ["c", "d"], ["e", "f"]] == pool.batches


def test_next_batch_is_made_ready_while_results_are_stored(start: Callable[..., Worker], hub: Hub):
    """When the second batch begins, the first one's model has ended: a third one leaves."""
    pool = Pool()
    start(pool, hub).send("pairs", *"abcdef")
    for sent in pool.sent[:2]:
        sent.accept_callback(1, 0.0)
        next(hub.loop)

    assert [["a", "b"], ["c", "d"], ["e", "f"]] == pool.batches


def test_all_that_may_leave_leaves_at_once(start: Callable[..., Worker]):
    """If several slots are free, one dispatch fills them all."""
    pool = Pool(processes=2)
    worker = start(pool)
    worker.scheduler.close(restarting=True)
    worker.send("pairs", *"abcdefghij")
    worker.scheduler.open()
    worker.scheduler.dispatch()

    assert 4 == len(pool.batches)


def test_a_batch_that_can_grow_waits_for_the_running_one(
    worker: Worker, pool: Pool, clock: ManualClock
):
    """Behind a running batch only full batches leave; a free slot takes the rest."""
    worker.send("pairs", "a", "b", "c")
    clock.advance(60.0)
    worker.scheduler.dispatch()

    assert [["a", "b"]] == pool.batches

    pool.finish(0)

    assert [["a", "b"], ["c"]] == pool.batches


def test_new_requests_wait_for_the_callers_of_the_last_batch(
    worker: Worker, pool: Pool, clock: ManualClock
):
    """When a batch of several ends, the linger time restarts: its callers often call again."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["trios"])
    patience = task_queue.policy.linger_seconds
    worker.send("trios", "a", "b")
    clock.advance(patience)
    worker.scheduler.dispatch()
    worker.send("trios", "c")
    clock.advance(2 * patience)
    pool.finish(0)

    assert [["a", "b"]] == pool.batches

    worker.send("trios", "d")
    clock.advance(patience)
    worker.scheduler.dispatch()

    assert [["a", "b"], ["c", "d"]] == pool.batches


def test_a_refused_caller_is_told_a_time_by_the_present_target(
    app: Celery, start: Callable[..., Worker], pool: Pool
):
    """An operator may have changed the target since the worker started."""
    app.task(base=BatchTask, name="hurried", max_batch_size=1, target_latency=0.1, shed=True)(same)
    worker = start(pool)
    task_queue = worker.scheduler.task_queue(app.tasks["hurried"])
    task_queue.policy = replace(task_queue.policy, target_latency=5.0)
    assert task_queue.target is not None
    for _ in range(8):
        task_queue.target.queue.model.observe(1, 4.0)
    worker.send("hurried", "a", "b")
    ((_, einfo),) = (what for _, *what in worker.events if what[0] == "failed")

    assert [["a"]] == pool.batches
    assert einfo.exception.exc.retry_after >= 5.0


def test_busy_task_does_not_keep_full_batches_of_another_waiting(
    worker: Worker, pool: Pool, clock: ManualClock
):
    """However many older requests of one task wait, the next batch is another task's."""
    for name, ids in [("pairs", "abcdefghij"), ("trios", "xyz"), ("pairs", "klmnop")]:
        worker.send(name, *ids)
        clock.advance(0.125)
    pool.finish_all()

    assert ["ab", "cd", "xyz", "ef", "gh", "ij", "kl", "mn", "op"] == [
        "".join(ids) for ids in pool.batches
    ]


def test_next_batch_is_chosen_just_before_the_running_one_ends(
    worker: Worker, pool: Pool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """So the request of another task that comes while it runs goes next."""
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=clock))
    worker.scheduler.task_queue(worker.app.tasks["pairs"]).history.usual_seconds = 5.0
    worker.send("single", "x")
    pool.finish()
    worker.send("pairs", "a", "b")
    pool.sent[-1].accept_callback(1, clock())
    worker.send("pairs", "c", "d")

    assert [["x"], ["a", "b"]] == pool.batches
    assert pytest.approx(4.99) == worker.timeouts[-1]

    clock.advance(3.0)
    worker.send("single", "y")
    clock.advance(1.995)
    worker.fire_timer(0.0)

    assert [["x"], ["a", "b"], ["y"]] == pool.batches

    pool.finish(1)

    assert [["x"], ["a", "b"], ["y"], ["c", "d"]] == pool.batches


def test_alarm_is_set_for_whoever_may_leave_first(worker: Worker, clock: ManualClock, pool: Pool):
    """The timer is set for the task queue whose batch is due first."""
    worker.send("pairs", "a")
    clock.advance(1.5)
    worker.send("trios", "b")
    soonest = worker.timeouts[-1]

    assert 0.5 == soonest

    clock.advance(soonest)
    worker.fire_timer(0.0)

    assert [["a"]] == pool.batches


def test_late_alarm_gives_newcomers_another_linger(worker: Worker, pool: Pool, clock: ManualClock):
    """A loop that was busy for longer than linger reads new messages before batches leave."""
    worker.send("trios", "a")
    clock.advance(5.0)
    worker.fire_timer(3.0)

    assert [] == pool.batches
    assert 2.0 == worker.timeouts[-1]

    clock.advance(5.0)  # but never beyond max_wait
    worker.fire_timer(3.0)

    assert [["a"]] == pool.batches


def test_restart_gives_back_what_no_process_has_accepted(worker: Worker, pool: Pool):
    """A lost connection empties queues and pool; running batches end, and acknowledge nothing."""
    worker.send("pairs", *"abcde")
    pool.sent[0].accept_callback(1, 0.0)
    worker.scheduler.close(restarting=True)

    assert {"a", "b"} == reserved() & set("abcde")
    assert 1 == worker.in_flight

    pool.sent[0].callback(BatchEnd([(0, "A", 0.1), (0, "B", 0.1)]))

    assert ["a", "b"] == worker.ids("settled")
    assert [] == worker.ids("acknowledged")
    assert 0 == worker.in_flight


def test_restarted_lanes_carry_on(worker: Worker, pool: Pool):
    """Between connections no batch leaves; on the next connection batches leave again."""
    worker.send("pairs", *"abcde")
    pool.sent[0].accept_callback(1, 0.0)
    worker.scheduler.close(restarting=True)
    worker.send("pairs", "f", "g")

    assert [["a", "b"], ["c", "d"]] == pool.batches

    worker.scheduler.open()
    worker.scheduler.dispatch()

    assert ["f", "g"] == pool.batches[-1]
    assert 2 == worker.in_flight


def test_shutdown_gives_back_a_job_that_waits_for_a_process(worker: Worker, pool: Pool):
    """A job that Celery holds until a process is free runs nowhere after a shutdown."""
    held: list[BatchJob] = []
    worker.on_task_request = held.append
    worker.send("pairs", "a", "b")
    worker.scheduler.close(restarting=False)

    assert set() == reserved() & {"a", "b"}
    assert 0 == worker.in_flight
    with pytest.raises(TaskRevokedError):
        held[0].execute_using_pool(pool)
    assert [] == pool.batches


def settled_after_each_pass(worker: Worker, passes: int) -> list[int]:
    """Run the loop, and count the settled requests after each pass."""
    counts = []
    for _ in range(passes):
        next(worker.hub.loop)
        counts.append(len(worker.ids("settled")))
    return counts


def test_next_batch_leaves_before_the_last_one_is_settled(
    start: Callable[..., Worker], pool: Pool, hub: Hub
):
    """On an event loop bookkeeping comes last, and in slices."""
    worker = start(pool, hub)
    worker.send("crowds", *(f"id{n}" for n in range(120)))
    pool.finish(0)

    assert 2 == len(pool.sent)

    next(hub.loop)

    assert 3 == len(pool.sent)
    assert [] == worker.ids("settled")
    assert [16, 32, 40, 40] == settled_after_each_pass(worker, 4)


@pytest.mark.parametrize(("restarting", "acknowledged"), [(True, 0), (False, 2)])
def test_closing_settles_what_the_loop_had_put_off(
    start: Callable[..., Worker], hub: Hub, *, restarting: bool, acknowledged: int
):
    """Results are stored before the end, and acknowledged only if the connection is there."""
    pool = Pool()
    worker = start(pool, hub)
    worker.send("pairs", "a", "b")
    pool.finish(0)
    worker.scheduler.close(restarting=restarting)

    assert ["a", "b"] == worker.ids("settled")
    assert acknowledged == len(worker.ids("acknowledged"))


def test_batches_end_while_another_is_sent(
    worker: Worker, pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """A job of a thread pool may end at any time; the next batch leaves all the same."""

    def end(job: BatchJob) -> bool:
        worker.scheduler._job_left(job)
        return False

    worker.send("pairs", "a", "b")
    monkeypatch.setattr(BatchJob, "accepted", property(end))
    worker.send("pairs", "c", "d")

    assert [["a", "b"], ["c", "d"]] == pool.batches


def test_batch_that_waits_for_a_process_leaves_out_what_others_have(worker: Worker, pool: Pool):
    """A batch that is not yet in the pool runs without the lost requests, or not at all."""
    held: list[BatchJob] = []
    worker.on_task_request = held.append
    for call in worker.send("pairs", *"abcd"):
        call.message = SimpleNamespace(delivery_tag=f"tag of {call.id}")
    worker.scheduler.drop({"tag of a", "tag of c", "tag of d"})
    held[0].execute_using_pool(pool)
    with pytest.raises(TaskRevokedError):
        held[1].execute_using_pool(pool)

    assert [["b"]] == pool.batches
    assert 1 == worker.in_flight
    assert {"b"} == reserved() & set("abcd")


@pytest.mark.parametrize("look", ["dispatch", "fire_timer"])
def test_a_task_may_get_its_first_request_meanwhile(
    worker: Worker, pool: Pool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, look: str
):
    """Without an event loop another thread adds the queue of a task while batches leave."""
    worker.send("pairs", "a")
    worker.send("trios", "b")
    clock.advance(60.0)
    names = iter(["single", "crowds"])
    is_empty, restart = TaskQueue.is_empty, TaskQueue.restart_linger

    def add_queue() -> None:
        if name := next(names, ""):
            worker.scheduler.task_queue(worker.app.tasks[name])

    def look_meanwhile(task_queue: TaskQueue) -> bool:
        add_queue()
        return is_empty.fget(task_queue)

    def restart_meanwhile(task_queue: TaskQueue) -> None:
        add_queue()
        restart(task_queue)

    monkeypatch.setattr(TaskQueue, "is_empty", property(look_meanwhile))
    monkeypatch.setattr(TaskQueue, "restart_linger", restart_meanwhile)
    worker.fire_timer(60.0) if look == "fire_timer" else worker.scheduler.dispatch()
    pool.finish(0)

    assert {"a", "b"} == {name for batch in pool.batches for name in batch}


def first_of(item: Any, key: Any) -> Any:  # noqa: ARG001 (a key gets all arguments)
    """Return what came first."""
    return item


def test_many_ready_keys_leave_places_to_other_tasks(
    app: Celery, start: Callable[..., Worker], clock: ManualClock
):
    """They take the place behind the running batch, so that no slot is ever free for others."""
    app.task(base=BatchTask, name="keyed", max_batch_size=8, batch_by="key")(first_of)
    pool = Pool()
    worker = start(pool)
    keyed = worker.scheduler.task_queue(app.tasks["keyed"])

    def send(number: int) -> None:
        call = Call(f"{number}", worker.events, "keyed")
        call.batch_key = number
        worker.scheduler.add(keyed, call)

    for number in range(60):
        send(number)
    clock.advance(1.0)
    worker.send("trios", "other")
    for number in range(60):
        if ["other"] in pool.batches:
            break
        clock.advance(20.0)
        send(60 + number)  # so that as many wait as before
        pool.sent[number].accept_callback(1, clock())
        pool.finish(number)

    assert ["other"] in pool.batches[:5]
