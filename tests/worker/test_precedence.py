"""Whose batch is next among the tasks of a worker: the most urgent one's, but for a share."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch.batching.policy import BatchPolicy
from celery_batch.worker.precedence import Precedence


class Waiting:
    """A lane, as far as its turn depends on it."""

    def __init__(self, urgency: int | None, oldest: float, share: float = 0.25) -> None:
        self.urgency, self.oldest = urgency, oldest
        self.policy = BatchPolicy(bulk_share=share)


class Sent:
    """A batch job, as far as others may go before it."""

    def __init__(self, urgency: int, *, accepted: bool = False, owed: float = 0.0) -> None:
        self.urgency, self.accepted, self.owed = urgency, accepted, owed


def turns(precedence: Precedence, lanes: list[Any], count: int) -> list[int]:
    """Have so many batches leave, each of whose turn it is; return their lanes' places."""
    places = []
    for _ in range(count):
        lane = precedence.order(lanes)[0]
        precedence.note(lane, Sent(lane.urgency), lanes)
        places.append(lanes.index(lane))
    return places


def test_most_urgent_lane_comes_first_and_then_who_waits_longest():
    """Who has nobody in line comes last."""
    lanes = [Waiting(None, float("inf")), Waiting(9, 1.0), Waiting(0, 3.0), Waiting(0, 2.0)]
    order = Precedence().order(lanes)

    assert [3, 2, 1, 0] == [lanes.index(lane) for lane in order]


def test_lane_that_is_passed_by_comes_once_in_so_many():
    """By its own share; with none it waits for as long as others are more urgent."""
    assert [0, 0, 0, 1] * 2 == turns(Precedence(), [Waiting(0, 2.0), Waiting(9, 1.0)], 8)
    assert [0] * 30 == turns(Precedence(), [Waiting(0, 2.0), Waiting(9, 1.0, share=0.0)], 30)


def test_batch_that_a_lane_is_owed_is_overtaken_by_nobody():
    """It counts as urgent as the most urgent who stood back for it."""
    precedence, lanes = Precedence(), [Waiting(0, 2.0), Waiting(9, 1.0)]
    turns(precedence, lanes, 3)
    job: Any = Sent(9)
    precedence.note(lanes[1], job, lanes)

    assert 0 == job.urgency


@pytest.mark.parametrize(
    ("share", "owed", "times"),
    [(0.1, 0.0, 9), (0.25, 0.0, 3), (0.5, 0.0, 1), (0.1, 0.7, 2), (0.1, 1.0, 0)],
)
def test_batch_that_lies_ready_is_overtaken_so_often_at_most(share: float, owed: float, times: int):
    """Then it is one of so many batches that its task has a right to, those in line counted."""
    precedence, lane = Precedence(), Waiting(0, 1.0)
    running, ready = Sent(9, accepted=True), Sent(9, owed=owed)
    jobs: list[Any] = [running, ready]
    overtaken = 0
    while precedence.overtaken_by(lane, jobs):
        precedence.overtake(ready, share)
        overtaken += 1

    assert times == overtaken


def test_nobody_goes_before_an_equal_or_two_that_lie_ready():
    """One more place there is, and it is for who is more urgent."""
    precedence, ready = Precedence(), Sent(3)

    assert not precedence.overtaken_by(Waiting(3, 1.0), [ready])
    assert not precedence.overtaken_by(Waiting(None, 1.0), [ready])
    assert not precedence.overtaken_by(Waiting(0, 1.0), [ready, Sent(0)])
    assert precedence.overtaken_by(Waiting(0, 1.0), [ready, Sent(3, accepted=True)])
