"""Whose batch is next among the tasks of a worker: the most urgent one's, but for a share."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch.batching.policy import BatchPolicy
from celery_batch.worker.scheduling.priority import TaskPriority
from celery_batch.worker.scheduling.task_queue import LEAST_URGENT


class Waiting:
    """A lane, as far as its turn depends on it."""

    def __init__(self, urgency: int, oldest: float, share: float = 0.25) -> None:
        self.urgency, self.oldest = urgency, oldest
        self.policy = BatchPolicy(low_priority_share=share)


class Sent:
    """A batch job, as far as others may go before it."""

    def __init__(self, urgency: int, *, accepted: bool = False, guaranteed: float = 0.0) -> None:
        self.urgency, self.accepted, self.guaranteed = urgency, accepted, guaranteed


def turns(priority: TaskPriority, task_queues: list[Any], count: int) -> list[int]:
    """Have so many batches leave, each of whose turn it is; return their lanes' places."""
    places = []
    for _ in range(count):
        task_queue = priority.order(task_queues)[0]
        priority.batch_left(task_queue, Sent(task_queue.urgency), task_queues)
        places.append(task_queues.index(task_queue))
    return places


def test_most_urgent_lane_comes_first_and_then_who_waits_longest():
    """Who has nobody in line comes last."""
    task_queues = [
        Waiting(LEAST_URGENT, float("inf")),
        Waiting(9, 1.0),
        Waiting(0, 3.0),
        Waiting(0, 2.0),
    ]
    order = TaskPriority().order(task_queues)

    assert [3, 2, 1, 0] == [task_queues.index(task_queue) for task_queue in order]


def test_lane_that_is_passed_by_comes_once_in_so_many():
    """By its own share; with none it waits for as long as others are more urgent."""
    assert [0, 0, 0, 1] * 2 == turns(TaskPriority(), [Waiting(0, 2.0), Waiting(9, 1.0)], 8)
    assert [0] * 30 == turns(TaskPriority(), [Waiting(0, 2.0), Waiting(9, 1.0, share=0.0)], 30)


def test_batch_that_a_lane_is_owed_is_overtaken_by_nobody():
    """It counts as urgent as the most urgent who stood back for it."""
    priority, task_queues = TaskPriority(), [Waiting(0, 2.0), Waiting(9, 1.0)]
    turns(priority, task_queues, 3)
    job: Any = Sent(9)
    priority.batch_left(task_queues[1], job, task_queues)

    assert 0 == job.urgency


@pytest.mark.parametrize(
    ("share", "guaranteed", "times"),
    [(0.1, 0.0, 9), (0.25, 0.0, 3), (0.5, 0.0, 1), (0.1, 0.7, 2), (0.1, 1.0, 0)],
)
def test_batch_that_lies_ready_is_overtaken_so_often_at_most(
    share: float, guaranteed: float, times: int
):
    """Then it is one of so many batches that its task has a right to, those in line counted."""
    priority, task_queue = TaskPriority(), Waiting(0, 1.0)
    running, ready = Sent(9, accepted=True), Sent(9, guaranteed=guaranteed)
    jobs: list[Any] = [running, ready]
    overtaken = 0
    while priority.overtaken_by(task_queue, jobs):
        priority.overtake(ready, share)
        overtaken += 1

    assert times == overtaken


def test_nobody_goes_before_an_equal_or_two_that_lie_ready():
    """One more place there is, and it is for who is more urgent."""
    priority, ready = TaskPriority(), Sent(3)

    assert not priority.overtaken_by(Waiting(3, 1.0), [ready])
    assert not priority.overtaken_by(Waiting(LEAST_URGENT, 1.0), [ready])
    assert not priority.overtaken_by(Waiting(0, 1.0), [ready, Sent(0)])
    assert priority.overtaken_by(Waiting(0, 1.0), [ready, Sent(3, accepted=True)])
