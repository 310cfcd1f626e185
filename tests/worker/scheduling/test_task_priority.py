"""Which task runs next: the most urgent one, except for the low-priority share of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_batch.batching.batch import LEAST_URGENT
from celery_batch.batching.policy import BatchPolicy
from celery_batch.telemetry.report import Work
from celery_batch.worker.dispatch.follow_up import BatchEnd
from celery_batch.worker.scheduling.history import BatchHistory
from celery_batch.worker.scheduling.priority import TaskPriority
from celery_batch.worker.scheduling.task_queue import TaskQueue

_TASK = SimpleNamespace(name="task")


class Waiting:
    """A task queue, as far as the order depends on it."""

    def __init__(self, urgency: int, oldest: float, share: float = 0.25) -> None:
        self.urgency, self.oldest = urgency, oldest
        self.policy = BatchPolicy(low_priority_share=share)
        self.task = _TASK
        self.history = BatchHistory()
        self.is_in_use: Callable[[float], bool] = lambda _: True


class Sent:
    """A batch job, as far as others may overtake it."""

    def __init__(self, urgency: int, *, accepted: bool = False, earned_part: float = 0.0) -> None:
        self.urgency, self.accepted, self.earned_part = urgency, accepted, earned_part
        self.start, self.task, self.batches = 0.0, _TASK, 1.0


def turns(priority: TaskPriority, task_queues: list[Any], count: int) -> list[int]:
    """Have so many batches leave, in order; return the indexes of their task queues."""
    places = []
    for _ in range(count):
        task_queue = priority.order(task_queues)[0]
        priority.batch_left(task_queue, Sent(task_queue.urgency), task_queues)
        places.append(task_queues.index(task_queue))
    return places


def test_most_urgent_task_comes_first_then_the_longest_waiting():
    """A task without requests comes last."""
    task_queues = [
        Waiting(LEAST_URGENT, float("inf")),
        Waiting(9, 1.0),
        Waiting(0, 3.0),
        Waiting(0, 2.0),
    ]
    order = TaskPriority().order(task_queues)

    assert [3, 2, 1, 0] == [task_queues.index(task_queue) for task_queue in order]


def test_overtaken_task_comes_once_in_so_many():
    """As its share says; with none it waits for as long as others are more urgent."""
    assert [0, 0, 0, 1] * 2 == turns(TaskPriority(), [Waiting(0, 2.0), Waiting(9, 1.0)], 8)
    assert [0] * 30 == turns(TaskPriority(), [Waiting(0, 2.0), Waiting(9, 1.0, share=0.0)], 30)


def test_batch_that_a_task_has_earned_is_not_overtaken():
    """It becomes as urgent as the most urgent request that it goes before."""
    priority, task_queues = TaskPriority(), [Waiting(0, 2.0), Waiting(9, 1.0)]
    turns(priority, task_queues, 3)
    job: Any = Sent(9)
    priority.batch_left(task_queues[1], job, task_queues)

    assert 0 == job.urgency


@pytest.mark.parametrize(
    ("share", "earned_part", "times"),
    [(0.1, 0.0, 9), (0.25, 0.0, 3), (0.5, 0.0, 1), (0.1, 0.7, 2), (0.1, 1.0, 0)],
)
def test_ready_batch_is_overtaken_so_often_at_most(share: float, earned_part: float, times: int):
    """Then its task has earned a batch, with what its requests earned while they waited."""
    priority, task_queue = TaskPriority(), Waiting(0, 1.0)
    running, ready = Sent(9, accepted=True), Sent(9, earned_part=earned_part)
    jobs: list[Any] = [running, ready]
    overtaken = 0
    while priority.overtaken_by(task_queue, jobs):
        priority.overtake(ready, share)
        overtaken += 1

    assert times == overtaken


def test_no_batch_overtakes_two_ready_ones_or_one_of_its_task():
    """There is one more place, for a more urgent batch or that of another task."""
    priority, ready = TaskPriority(), Sent(3)

    assert not priority.overtaken_by(Waiting(3, 1.0), [ready])
    assert not priority.overtaken_by(Waiting(LEAST_URGENT, 1.0), [ready])
    assert not priority.overtaken_by(Waiting(0, 1.0), [ready, Sent(0)])
    assert priority.overtaken_by(Waiting(0, 1.0), [ready, Sent(3, accepted=True)])


def test_device_is_shared_by_time():
    """A task with batches of ten times the length gets a tenth of the batches."""
    task_queues = [Waiting(0, 1.0), Waiting(0, 2.0)]
    task_queues[0].history.usual_seconds, task_queues[1].history.usual_seconds = 1.0, 0.1

    assert 3 == turns(TaskPriority(), task_queues, 33).count(0)


def finished(seconds: float | None, *, began: float | None = 1.0) -> Any:
    """Return a batch that took so long; None if its process died, or it has not begun."""
    job: Any = Sent(0)
    job.began, job.answer = began, seconds and BatchEnd([], Work(seconds=seconds))
    return job


@pytest.mark.parametrize(
    ("job", "charged"),
    [
        (finished(0.25), 0.25),
        (finished(3.0), 3.0),
        (finished(None), 0.5),
        (finished(None, began=None), 0.0),
    ],
)
def test_a_batch_is_charged_what_it_took(job: Any, charged: float):
    """One whose process died is charged what was expected, one that has not begun nothing."""
    priority, task_queues = TaskPriority(), [Waiting(0, 1.0), Waiting(0, 2.0)]
    task_queues[0].history.usual_seconds = 0.5
    priority.batch_left(task_queues[0], job, task_queues)
    priority.batch_ended(task_queues[0], job)
    priority.batch_ended(task_queues[0], job)  # a pool may report an end twice
    task_queues[1].history.usual_seconds = charged + 0.01
    priority.batch_left(task_queues[1], finished(None), task_queues)

    assert 0 == task_queues.index(priority.order(task_queues)[0])
    task_queues[0].history.usual_seconds = 0.02
    priority.batch_left(task_queues[0], finished(None), task_queues)
    assert 1 == task_queues.index(priority.order(task_queues)[0])


def test_an_idle_task_goes_before_one_that_is_new_and_has_had_much():
    """Also if batches had begun before it was known how short they are."""
    priority, busy, idle = TaskPriority(), Waiting(0, 1.0), Waiting(0, 2.0)
    task_queues: Any = [busy, idle]
    first: Any
    second: Any
    first, second = finished(0.3), finished(0.3)
    for job in (first, second):
        priority.batch_left(task_queues[0], job, task_queues)
        priority.batch_began(job)
    for job in (first, second):
        priority.batch_ended(task_queues[0], job)

    assert idle is priority.order(task_queues)[0]


def test_next_batch_is_ready_just_before_a_running_one_ends():
    """If several tasks have work; where one has, or how long it takes is unknown, at once."""
    large, small = Waiting(0, 1.0), Waiting(0, 2.0)
    large.task, small.task = SimpleNamespace(name="large"), SimpleNamespace(name="small")
    running: Any = [
        SimpleNamespace(task=large.task, began=began, batches=1.0) for began in (100.0, 102.0)
    ]
    wait = TaskPriority.seconds_until_ready

    assert 0.0 == wait([large, small], running[:1], 1, 103.0)

    large.history.usual_seconds = 4.0

    assert pytest.approx(0.99) == wait([large, small], running[:1], 1, 103.0)
    assert pytest.approx(0.99) == wait([large, small], running, 2, 103.0)
    assert pytest.approx(2.99) == wait([large, small], running, 1, 103.0)  # the first has ended
    ready: Any = SimpleNamespace(task=large.task, began=None, batches=1.0)
    assert pytest.approx(2.99) == wait([large, small], [*running, ready], 2, 103.0)
    assert pytest.approx(3.99) == wait([large, small], [ready], 1, 103.0)
    small.history.usual_collating = 0.5
    assert pytest.approx(3.49) == wait([large, small], [ready], 1, 103.0)
    small.history.usual_collating = 0.0
    assert 0.0 == wait([large, small], running[:1], 1, 105.0)
    ready.batches = 2.0
    assert pytest.approx(7.99) == wait([large, small], [ready], 1, 103.0)
    small.is_in_use = lambda _: False
    assert 0.0 == wait([large, small], running[:1], 1, 103.0)
    assert 0.0 == wait([large], running[:1], 1, 103.0)


def test_a_ready_batch_is_overtaken_by_a_task_that_has_had_less():
    """As long as that is so; but not if it leaves as the share of its task."""
    priority, large, small = TaskPriority(), Waiting(0, 1.0, share=0.5), Waiting(0, 2.0)
    large.task, small.history.usual_seconds = SimpleNamespace(name="large"), 0.4
    large.history.usual_seconds = 1.0
    task_queues: Any = [large, small]
    jobs: Any = [Sent(0, accepted=True), Sent(0)]
    for job in jobs:
        job.task = large.task
        priority.batch_left(task_queues[0], job, task_queues)
    priority.batch_began(jobs[0])
    overtaken = 0
    while priority.overtaken_by(task_queues[1], jobs):
        turns(priority, task_queues, 1)
        overtaken += 1

    assert 3 == overtaken  # as 0.8 s is less than the second that the ready batch is charged
    large.urgency = 1
    turns(priority, task_queues, 1)  # so that the other has earned a batch
    priority.batch_left(task_queues[0], jobs[1], task_queues)
    assert not priority.overtaken_by(cast("Any", Waiting(0, 3.0)), jobs)


def test_task_queue_learns_how_long_its_rows_are_collated(app: Celery):
    """Batches that were not collated beside another one do not count."""
    task_queue = TaskQueue(app.tasks["pairs"], threading.RLock())
    for collating in (0.5, 0.0, 0.5, 0.0):
        task_queue.history.answered(BatchEnd([], Work(1, 0.0, 1.0, 1.0, collating=collating)), 1.0)

    assert (0.5, 1.0) == (task_queue.history.usual_collating, task_queue.history.usual_seconds)
