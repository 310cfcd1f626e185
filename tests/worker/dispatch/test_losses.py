"""Requests whose process died, took too long or stopped early."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_batch import BatchTask
from celery_batch.errors import PoisonItem
from celery_batch.testing import ManualClock
from celery_batch.worker.dispatch.follow_up import BatchEnd, Unanswered, error_info
from celery_batch.worker.intake.dead_letters import DeadLetters
from tests.worker.doubles import Call, Pool, Worker

LOST = error_info(WorkerLostError("signal 9 (SIGKILL)"))


def lose(pool: Pool, index: int = -1, einfo: Any = LOST) -> None:
    """Let the process die that runs a batch."""
    pool.sent[index].accept_callback(1, time.monotonic())
    pool.sent[index].error_callback(einfo)


def error_of(worker: Worker, task_id: str) -> Any:
    """Return the error of a request."""
    (einfo,) = [
        facts[0] for who, what, *facts in worker.events if (who, what) == (task_id, "failed")
    ]
    return getattr(einfo.exception, "exc", einfo.exception)


class Delayed(Call):
    """A request that calls `before_end` before it is acknowledged."""

    before_end: Callable[[Callable[[], None]], object] | None = None

    def acknowledge(self) -> None:
        """Acknowledge, after what must come first."""
        before, self.before_end = self.before_end, None
        done = super().acknowledge
        if before is not None:
            before(done)
        else:
            done()


def test_poison_that_comes_again_before_its_copy_is_kept_is_not_run(
    worker: Worker, pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """Its caller has the error; run once more, it would kill another process."""
    monkeypatch.setattr(DeadLetters, "write", lambda *_: None)  # it takes its time
    task_queue = worker.scheduler.task_queue(worker.app.tasks["single"])
    worker.scheduler.add(task_queue, Delayed("a", worker.events, "single"))
    lose(pool)
    lose(pool)
    worker.scheduler.close(restarting=True)
    worker.scheduler.open()
    again = Delayed("a", worker.events, "single")
    again.is_redelivered = True
    worker.scheduler.add(task_queue, again)

    assert [["a"], ["a"]] == pool.batches
    assert isinstance(error_of(worker, "a"), PoisonItem)
    assert again.acknowledged


def test_losses_elsewhere_count(worker: Worker, pool: Pool):
    """A request that was lost on another host runs alone, and one more loss makes it poison."""
    call = Call("a", worker.events)
    call.losses = 1
    worker.scheduler.add(worker.scheduler.task_queue(worker.app.tasks["pairs"]), call)
    worker.send("pairs", "b", "c")
    lose(pool, 0)

    assert [["a"], ["b", "c"]] == pool.batches
    assert isinstance(error_of(worker, "a"), PoisonItem)


def test_a_loss_in_a_batch_never_makes_poison(worker: Worker, pool: Pool):
    """However often a request was lost in a batch, only a loss alone makes it poison."""
    calls = worker.send("pairs", "a", "b")
    calls[0].losses = 9
    lose(pool)

    assert [] == worker.ids("failed")
    assert ["a"] == pool.batches[1]


def test_stored_success_is_not_run_again(worker: Worker, pool: Pool):
    """A request that was answered before its process died succeeds, as in Celery."""
    calls = worker.send("pairs", "a", "b")
    calls[0].has_succeeded = True
    lose(pool)

    assert ["a"] == worker.ids("failed")  # where Celery finds the success and announces it
    assert [["a", "b"], ["b"]] == pool.batches


def test_revoked_item_of_a_lost_process_stays_revoked(worker: Worker, pool: Pool):
    """A request that was revoked while it ran neither runs again nor has a handler called."""
    calls = worker.send("pairs", "a", "b")
    calls[0].is_done = True
    lose(pool)

    assert [["a", "b"], ["b"]] == pool.batches
    assert [] == worker.ids("failed")


def test_items_over_the_time_limit_have_seconds_left(worker: Worker, pool: Pool):
    """They run again alone, within what is left until twice the limit + 5 s."""
    calls = worker.send("pairs", "a", "b")
    lose(pool, einfo=error_info(TimeLimitExceeded(9.0)))

    assert [["a", "b"], ["a"], ["b"]] == pool.batches
    assert all(14 < call.deadline - time.monotonic() <= 22.1 for call in calls)


def test_an_item_that_runs_again_leaves_time_for_the_others(worker: Worker, pool: Pool):
    """One that is over the limit again would else use up what is left for all."""
    type(worker.app.tasks["pairs"]).time_limit = 300
    worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(1, time.monotonic() - 300)
    pool.sent[0].error_callback(error_info(TimeLimitExceeded(300.0)))

    assert 140 < pool.sent[1].timeout <= 152  # half of 300 + 4 s
    assert 300 == pool.sent[2].timeout  # no other waits


def test_second_time_over_the_limit_is_the_end(worker: Worker, pool: Pool):
    """The error names the task's own limit, not what was left of it for the second try."""
    worker.send("pairs", "a", "b")
    lose(pool, einfo=error_info(TimeLimitExceeded(9.0)))
    lose(pool, 1, einfo=error_info(TimeLimitExceeded(3.2)))

    assert TimeLimitExceeded(9.0).args == error_of(worker, "a").args
    assert ("a", "timeout", False, 9.0) in worker.events


def test_whose_turn_does_not_come_in_time_is_given_up(
    worker: Worker, pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """No caller waits longer than twice the limit + 5 s, even if no process is free again."""
    worker.send("trios", "a", "b", "c")
    lose(pool, einfo=error_info(TimeLimitExceeded(9.0)))
    later = time.monotonic() + 23.0
    monkeypatch.setattr("celery_batch.worker.scheduling.task_queue.time.monotonic", lambda: later)
    worker.scheduler.dispatch()

    assert [["a", "b", "c"], ["a"], ["b"]] == pool.batches  # one runs, one lies ready
    assert TimeLimitExceeded(9.0).args == error_of(worker, "c").args


@pytest.mark.parametrize("unanswered", Unanswered)
def test_who_expired_before_the_model_is_revoked(
    worker: Worker, pool: Pool, unanswered: Unanswered
):
    """A request without an answer that has expired does not run again."""
    calls = worker.send("trios", "a", "b", "c")
    revoked: list[str] = []
    for call in calls[1:]:
        call.has_expired = True
        call.revoked = lambda name=call.id: revoked.append(name) is None
    pool.sent[0].callback(BatchEnd([(0, "A", 0.1), None, None], unanswered=unanswered))

    assert ["a"] == worker.ids("settled")
    assert ["b", "c"] == revoked
    assert [["a", "b", "c"]] == pool.batches


def test_batch_that_never_began_is_no_suspect(worker: Worker, pool: Pool):
    """A process that refused a batch leaves its requests as they were, together."""
    worker.send("pairs", "a", "b")
    pool.sent[0].callback(BatchEnd([None, None], unanswered=Unanswered.NOT_STARTED))

    assert [["a", "b"], ["a", "b"]] == pool.batches


@pytest.mark.parametrize("target", [None, 60.0])
def test_what_could_not_be_read_waits_behind_the_others(
    worker: Worker, pool: Pool, clock: ManualClock, target: float | None
):
    """A payload store that is away keeps no other request waiting, with a latency target or not."""
    worker.app.task(base=BatchTask, name="prompt", max_batch_size=2, target_latency=target)(_same)
    worker.send("prompt", "a", "b", "c", "d", "e", "f")
    clock.advance(1.0)
    pool.sent[0].callback(BatchEnd([None, None], unanswered=Unanswered.NOT_READ))
    for index in (1, 2, 3):
        pool.finish(index)

    assert [["a", "b"], ["c", "d"], ["e", "f"], ["a", "b"]] == pool.batches
    assert list("cdefab") == worker.ids("settled")


def _same(x: Any) -> Any:
    return x


def test_an_error_in_what_is_learnt_keeps_no_answer_back(
    worker: Worker, pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is logged once, and each request has its end."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    monkeypatch.setattr(task_queue, "job_left", lambda _: 1 / 0)
    monkeypatch.setattr(task_queue, "batch_ended", lambda _: 1 / 0)
    worker.send("pairs", "a", "b")
    pool.finish()

    assert ["a", "b"] == worker.ids("settled")
    assert 1 == caplog.text.count("Could not record a batch of pairs")


def test_result_that_cannot_be_stored_is_computed_again(worker: Worker, pool: Pool):
    """If not even the failure can be stored, the request runs again."""
    calls = worker.send("pairs", "a", "b")
    calls[0].storable = False
    calls[0].task.name = "pairs"
    pool.sent[0].callback(BatchEnd(["explode", (0, "B", 0.1)]))
    worker.send("pairs", "c")

    assert ["b"] == worker.ids("settled")
    assert [["a", "b"], ["a", "c"]] == pool.batches


def redeliver(worker: Worker, *ids: str) -> None:
    """Bring messages again after a lost connection."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    for task_id in ids:
        call = Call(task_id, worker.events)
        call.is_redelivered = True
        worker.scheduler.add(task_queue, call)


def test_what_runs_on_is_not_run_twice(worker: Worker, pool: Pool):
    """After a lost connection a running batch's messages come again, and wait for its end."""
    worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(1, 0.0)
    worker.scheduler.close(restarting=True)
    worker.scheduler.open()
    redeliver(worker, "a", "b")
    pool.finish(0)

    assert [["a", "b"]] == pool.batches
    assert ["a", "b"] == worker.ids("acknowledged")


def test_what_runs_on_is_as_old_as_before(worker: Worker, pool: Pool):
    """What was found out of a request is known of its new message, too: its age, cost and key."""
    calls = worker.send("pairs", "a", "b")
    calls[1].cost, calls[1].work, calls[1].batch_key = 3.0, 6.0, "key"
    (job,) = worker.scheduler.slots.jobs
    pool.sent[0].accept_callback(1, 0.0)
    worker.scheduler.close(restarting=True)
    worker.scheduler.open()
    redeliver(worker, "a", "b")
    known = [(each.arrived, each.cost, each.work, each.batch_key) for each in job.requests]

    assert all(each not in calls for each in job.requests)
    assert [(calls[0].arrived, None, 1.0, None), (calls[1].arrived, 3.0, 6.0, "key")] == known


def test_what_was_answered_meanwhile_is_only_acknowledged(worker: Worker, pool: Pool):
    """A batch may end before its messages come again; they are acknowledged on arrival."""
    worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(1, 0.0)
    worker.scheduler.close(restarting=True)
    pool.finish(0)
    worker.scheduler.open()
    redeliver(worker, "a", "b")

    assert [["a", "b"]] == pool.batches
    assert ["a", "b"] == worker.ids("acknowledged")


@pytest.mark.parametrize(
    ("transport", "batches"), [("amqp", [["a"], ["b"]]), ("redis", [["a", "b"]])]
)
def test_redelivered_message_is_a_suspect_where_nobody_counts(
    worker: Worker, pool: Pool, transport: str, batches: list[list[str]]
):
    """On AMQP it may have killed its last worker; on Redis a message counts its losses."""
    worker.connection.transport.driver_type = transport
    redeliver(worker, "a", "b")

    assert batches == pool.batches


def test_a_message_that_was_returned_and_never_failed_is_no_suspect(worker: Worker, pool: Pool):
    """RabbitMQ 4.3 counts failures apart from returns, which is better known than "again"."""
    worker.connection.transport.driver_type = "amqp"
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    for task_id in "ab":
        call = Call(task_id, worker.events)
        call.is_redelivered, call.deliveries = True, 0
        worker.scheduler.add(task_queue, call)

    assert [["a", "b"]] == pool.batches


@pytest.mark.parametrize(("deliveries", "batches"), [(1, [["a", "b"]]), (2, [["a"], ["b"]])])
def test_worker_with_pool_processes_suspects_later(
    start: Callable[..., Worker], deliveries: int, batches: list[list[str]]
):
    """Such a worker outlives its processes; only a request that comes repeatedly runs alone."""

    class Prefork(Pool, PreforkPool):
        num_processes = 1
        __init__ = Pool.__init__

    pool = Prefork()
    worker = start(pool)
    worker.connection.transport.driver_type = "amqp"
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    for task_id in "ab":
        call = Call(task_id, worker.events)
        call.is_redelivered, call.deliveries = True, deliveries
        worker.scheduler.add(task_queue, call)

    assert batches == pool.batches


def test_those_delivered_again_share_batches_once_some_did_well(worker: Worker, pool: Pool):
    """Most have only waited in the worker that ended."""
    worker.connection.transport.driver_type = "amqp"
    redeliver(worker, *"abcdefghij")
    pool.finish_all()

    assert [["a"], ["b"], ["c", "d"]] == pool.batches[:3]
    assert {2} == set(map(len, pool.batches[2:]))
    assert set("abcdefghij") == set(worker.ids("settled"))


def test_what_this_worker_gave_back_unrun_is_no_suspect(worker: Worker, pool: Pool):
    """Requests that only waited when the connection was lost run in a batch again."""
    worker.connection.transport.driver_type = "amqp"
    worker.send("pairs", "a", "b", "c", "d", "e")
    worker.scheduler.close(restarting=True)
    worker.scheduler.open()
    redeliver(worker, "c", "d")

    assert ["c", "d"] == pool.batches[-1]


def test_lately_answered_message_is_only_acknowledged(worker: Worker, pool: Pool):
    """A broker that crashed forgets its last acknowledgements; the worker does not."""
    worker.send("pairs", "a", "b")
    pool.finish(0)
    redeliver(worker, "a", "b")

    assert [["a", "b"]] == pool.batches
    assert ["a", "b", "a", "b"] == worker.ids("acknowledged")


def test_rejected_message_that_comes_again_runs_again(worker: Worker, pool: Pool):
    """A request that was rejected to be delivered again runs again."""
    calls = worker.send("pairs", "a", "b")
    for call in calls:
        call.was_rejected = True
    pool.finish(0)
    redeliver(worker, "a", "b")

    assert [["a", "b"], ["a", "b"]] == pool.batches


def test_disowned_batch_that_dies_waits_for_its_messages(worker: Worker, pool: Pool):
    """Its messages are the broker's; the losses are remembered until they come again."""
    worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(1, time.monotonic())
    worker.scheduler.close(restarting=True)
    worker.scheduler.open()
    pool.sent[0].error_callback(LOST)

    assert 1 == len(pool.batches)

    redeliver(worker, "a", "b")

    assert [["a"], ["b"]] == pool.batches[1:]


def test_answer_that_nobody_finds_is_computed_again(worker: Worker, pool: Pool):
    """If the result is gone, the message was sent again, and runs."""
    worker.send("pairs", "a", "b")
    pool.finish(0)
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    for task_id in "ab":
        call = Call(task_id, worker.events)
        call.is_redelivered, call.has_result = True, False
        worker.scheduler.add(task_queue, call)

    assert [["a", "b"], ["a", "b"]] == pool.batches


def test_stopped_batch_runs_when_its_messages_come_again(worker: Worker, pool: Pool):
    """A request that Celery cancels with a lost connection is not taken for answered."""
    calls = worker.send("pairs", "a", "b")
    pool.sent[0].accept_callback(1, time.monotonic())
    for call in calls:
        call.is_cancelled = True
    worker.scheduler.close(restarting=True)
    pool.sent[0].error_callback(LOST)
    worker.scheduler.open()
    redeliver(worker, "a", "b")

    assert [["a", "b"], ["a"], ["b"]] == pool.batches


def test_batch_that_cannot_be_submitted_fails(worker: Worker, pool: Pool):
    """A pool that raises loses neither the slot nor the requests."""

    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("cannot pickle it")

    pool.apply_async = refuse
    worker.send("pairs", "a", "b")

    assert ["a", "b"] == worker.ids("failed")
    assert (0, 1) == (worker.in_flight, worker.released)


def test_request_that_cannot_be_revoked_runs(worker: Worker, pool: Pool):
    """If its end cannot be announced, a request runs, so that its caller gets an answer."""
    (call,) = worker.send("pairs", "a")

    def fail() -> bool:
        raise ConnectionError("the backend is gone")

    call.revoked = fail
    worker.send("pairs", "b")

    assert [["a", "b"]] == pool.batches


def test_early_acknowledged_requests_end_with_the_worker(worker: Worker):
    """A request that waits to run again, once acknowledged, fails when the scheduler closes."""
    calls = worker.send("pairs", "a", "b", "c", "d", "e", "f")
    calls[4].acknowledged = True
    worker.scheduler.close(restarting=False)

    assert ["e"] == worker.ids("failed")


def test_job_that_has_ended_takes_nobody_in(worker: Worker, pool: Pool):
    """A message that comes again just then joins its task queue, not a job that has ended."""
    (call, _) = worker.send("pairs", "a", "b")
    (job,) = worker.scheduler.slots.jobs
    pool.finish(0)

    assert not job.adopt(call)


def test_pool_that_is_not_flushed_keeps_what_it_was_given(start: Callable[..., Worker], pool: Pool):
    """The threads pool runs what it has accepted, also without a connection; others must not."""
    pool.flush = None
    worker = start(pool)
    worker.send("pairs", "a", "b")
    worker.scheduler.close(restarting=True)
    worker.scheduler.open()
    redeliver(worker, "a", "b")
    pool.finish(0)

    assert [["a", "b"]] == pool.batches
    assert ["a", "b"] == worker.ids("acknowledged")
