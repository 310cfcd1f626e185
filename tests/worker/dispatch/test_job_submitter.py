"""The next batch is written to the pool process before the running one ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.pool import READY
from celery import Celery
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_batch import BatchTask
from celery_batch.compat.billiard import PoolPipe
from celery_batch.worker.dispatch.job_submitter import JobSubmitter

INBOX = 7


class Worker:
    """The parts of a prefork worker with one process."""

    def __init__(self, **conf: Any) -> None:
        self.app = Celery(set_as_current=False)
        self.app.conf.update(conf)
        self.pool = SimpleNamespace(_pool=AsynPool.__new__(AsynPool))
        billiards = self.pool._pool
        billiards._processes, billiards._pool = 1, [SimpleNamespace(inqW_fd=INBOX)]
        billiards._busy_workers, billiards.outbound_buffer = {INBOX}, deque()
        billiards._maxtasksperchild, billiards.synack = None, False
        billiards._cache, billiards._on_ready_counters = {}, {}
        billiards._result_handler = SimpleNamespace(state_handlers={READY: lambda *_: None})
        self.semaphore = LaxBoundedSemaphore(1)
        self.controller = SimpleNamespace(
            semaphore=self.semaphore, max_concurrency=None, concurrency=1
        )
        self.sent: list[str] = []
        self.later: list[Callable[[], None]] = []
        self.hub = SimpleNamespace(call_later=self._call_later)

    def _call_later(self, _seconds: float, look: Callable[[], None]) -> SimpleNamespace:
        self.later.append(look)
        return SimpleNamespace(cancel=lambda: look in self.later and self.later.remove(look))

    def on_task_request(self, job: Any) -> None:
        """Hand a job over as Celery's worker does."""
        self.semaphore.acquire(job.execute_using_pool, self.pool)


class Job:
    """A batch job with a name, which its process may have accepted."""

    def __init__(
        self, name: str, worker: Worker, *, acks_late: bool = True, urgency: int = 0
    ) -> None:
        self.name, self.worker = name, worker
        self.accepted = self.is_suspect = False
        self.precedence = urgency, 0.0
        self.neighbours: set[Job] = set()
        self.answer: Any = None

        @worker.app.task(base=BatchTask, name=f"ahead.{name}", acks_late=acks_late)
        def task(x):
            return x

        self.task = worker.app.tasks[f"ahead.{name}"]

    def runs_in(self, _pipe: Any) -> bool:
        """Return whether its process runs it."""
        return self.accepted

    def execute_using_pool(self, _pool: Any) -> None:
        """Be sent to the pool."""
        self.worker.sent.append(self.name)


def start(worker: Worker, *names: str, **options: Any) -> tuple[JobSubmitter, list[Job]]:
    """Submit jobs with these names."""
    ahead = JobSubmitter(worker)
    jobs = [Job(name, worker, **options) for name in names]
    for job in jobs:
        ahead.submit(job)
    return ahead, jobs


def test_second_job_follows_when_the_first_is_accepted():
    """Not before: until then it is unknown which process has it."""
    worker = Worker()
    ahead, (first, _) = start(worker, "a", "b")

    assert ["a"] == worker.sent

    first.accepted = True
    ahead.submit_held()

    assert ["a", "b"] == worker.sent
    assert set() == worker.pool._pool._busy_workers


def test_one_job_at_most_lies_ahead():
    """The third waits until the second is accepted."""
    worker = Worker()
    ahead, (first, second, _) = start(worker, "a", "b", "c")
    first.accepted = True
    ahead.submit_held()

    assert ["a", "b"] == worker.sent

    second.accepted = True
    ahead.submit_held()

    assert ["a", "b", "c"] == worker.sent


def test_more_urgent_job_lies_ahead_too():
    """One, although another is ready; a third, and one that is no more urgent, wait."""
    worker = Worker()
    ahead, (first, second) = start(worker, "a", "b", urgency=9)
    first.accepted = True
    ahead.submit_held()
    equal, urgent, more = (
        Job(name, worker, urgency=urgency) for name, urgency in [("c", 9), ("d", 0), ("e", -1)]
    )
    ahead.submit(equal)

    assert ["a", "b"] == worker.sent

    ahead.submit(urgent)
    ahead.submit(more)

    assert ["a", "b", "d"] == worker.sent

    urgent.accepted = True
    ahead.submit_held()

    assert ["a", "b", "d", "e"] == worker.sent

    more.accepted = second.accepted = True
    ahead.submit_held()

    assert ["a", "b", "d", "e", "c"] == worker.sent


def test_more_urgent_job_waits_only_until_the_one_before_is_written():
    """It does not wait for the batch that it may overtake: the pool does not report the writing."""
    worker = Worker()
    ahead, (first, _) = start(worker, "a", "b", urgency=9)
    first.accepted = True
    ahead.submit_held()
    unwritten = worker.pool._pool.outbound_buffer
    unwritten.append("b")
    for name, urgency in [("c", 0), ("d", 1)]:
        ahead.submit(Job(name, worker, urgency=urgency))

    assert ["a", "b"] == worker.sent
    assert 1 == len(worker.later)

    worker.later.pop()()

    assert ["a", "b"] == worker.sent

    unwritten.clear()
    worker.later.pop()()

    assert ["a", "b", "c"] == worker.sent
    assert [] == worker.later


def test_connection_that_ends_takes_no_timer_with_it():
    """The next connection sets the timer again, and does not wait for the lost one."""
    worker = Worker()
    ahead, (first, _) = start(worker, "a", "b", urgency=9)
    first.accepted = True
    ahead.submit_held()
    worker.pool._pool.outbound_buffer.append("b")
    ahead.submit(Job("c", worker))
    ahead.close()

    assert [] == worker.later

    ahead.submit_held()

    assert 1 == len(worker.later)


def test_task_that_cannot_be_written_ahead_overtakes_none():
    """A task whose batches wait for the process gets no place before others."""
    worker = Worker()
    ahead, (first, second) = start(worker, "a", "b", urgency=9)
    first.accepted = True
    ahead.submit_held()

    assert ahead.can_overtake(second.task)
    assert not ahead.can_overtake(Job("early", worker, acks_late=False).task)

    worker.semaphore.acquire(worker.sent.append, "ordinary")

    assert not ahead.can_overtake(second.task)


def test_job_ahead_takes_no_slot_of_others():
    """When the first ends, its slot is the second's; the next task waits for that one's end."""
    worker = Worker()
    ahead, (first, second) = start(worker, "a", "b")
    first.accepted = True
    ahead.submit_held()
    worker.semaphore.acquire(worker.sent.append, "ordinary")
    worker.semaphore.release()
    ahead.job_left(first)

    assert ["a", "b"] == worker.sent

    worker.semaphore.release()
    ahead.job_left(second)

    assert ["a", "b", "ordinary"] == worker.sent


def test_lost_jobs_free_their_slot():
    """A process that dies with two jobs frees one slot, and that is free then."""
    worker = Worker()
    ahead, (first, second) = start(worker, "a", "b")
    first.accepted = True
    ahead.submit_held()
    ahead.job_left(first)
    ahead.job_left(second)
    worker.semaphore.release()

    assert 1 == worker.semaphore.value


def test_ordinary_task_that_waits_for_the_process_goes_first():
    """A batch waits behind an ordinary task that was there before it."""
    worker = Worker()
    ahead, (first,) = start(worker, "a")
    first.accepted = True
    worker.semaphore.acquire(worker.sent.append, "ordinary")
    ahead.submit(Job("b", worker))
    worker.semaphore.release()
    ahead.job_left(first)
    worker.semaphore.release()

    assert ["a", "ordinary", "b"] == worker.sent


def test_process_is_busy_while_a_batch_runs_though_another_has_ended():
    """Celery takes a process for idle when any of its jobs has ended."""
    worker = Worker()
    ahead, (first, second) = start(worker, "a", "b")
    first.accepted = True
    ahead.submit_held()
    second.accepted = True
    worker.pool._pool._busy_workers.discard(INBOX)
    ahead.job_left(first)

    assert {INBOX} == worker.pool._pool._busy_workers


@pytest.mark.parametrize(
    ("conf", "options"),
    [({"batch_overlap": False}, {}), ({}, {"acks_late": False})],
    ids=["switched-off", "acknowledged-early"],
)
def test_others_wait_for_their_slots(conf: dict[str, Any], options: dict[str, Any]):
    """Where nothing may be written ahead, each job waits for its slot."""
    worker = Worker(**conf)
    ahead, (first, second) = start(worker, "a", "b", **options)
    first.accepted = True
    ahead.submit_held()

    assert ["a"] == worker.sent

    worker.semaphore.release()
    ahead.job_left(first)
    ahead.job_left(second)

    assert ["a", "b"] == worker.sent


def test_suspect_has_the_process_to_itself():
    """It is not written behind another, and nothing is written behind it."""
    worker = Worker()
    ahead, (first,) = start(worker, "a")
    first.accepted = True
    suspect, last = Job("suspect", worker), Job("b", worker)
    suspect.is_suspect = True
    ahead.submit(suspect)
    ahead.submit(last)

    assert ["a"] == worker.sent

    worker.semaphore.release()
    ahead.job_left(first)
    suspect.accepted = True
    ahead.accepted(suspect)

    assert ["a", "suspect"] == worker.sent


def test_neighbours_know_each_other_until_one_has_an_answer():
    """A request whose process died with other jobs in it was not alone."""
    worker = Worker()
    ahead, (first, second) = start(worker, "a", "b")
    for job in (first, second):
        job.accepted = True
        ahead.accepted(job)

    assert ({second}, {first}) == (first.neighbours, second.neighbours)

    first.answer = "fine"
    ahead.job_left(first)

    assert set() == second.neighbours


def test_a_job_does_not_run_while_the_pool_reports_its_end():
    """The pool has marked the process as idle, and gives it away before it calls back."""
    worker = Worker()
    inner, seen = worker.pool._pool, []
    ends, other = inner._cache.setdefault("ends", object()), object()

    def handle(*_: Any) -> None:
        seen.append([pipe.is_ending(ends), pipe.is_ending(other), pipe.is_ending(None)])

    inner._result_handler.state_handlers[READY] = handle
    pipe = PoolPipe(worker.pool)
    inner._result_handler.state_handlers[READY]("ends", None, None, INBOX)

    assert [[True, False, False]] == seen
    assert not pipe.is_ending(ends)
