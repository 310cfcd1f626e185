"""How many batches may have left at once."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.solo import TaskPool as SoloPool

from celery_batch.worker.scheduling.slots import Slots


@dataclass(eq=False)
class Job:
    """A batch that has left its queue."""

    accepted: bool = False


def answers(slots: Any, upto: int) -> list[tuple[bool, bool]]:
    """Return (free, room ahead) for each number of batches in flight, from none."""
    seen = []
    for count in range(upto + 1):
        slots.jobs = {Job() for _ in range(count)}
        seen.append((slots.is_free, slots.has_room_ahead))
    return seen


def test_one_batch_may_be_ready_behind_each_running_one():
    """Two processes run two batches at once, and hold two more."""
    slots = Slots(SimpleNamespace(num_processes=2))

    assert [(True, True)] * 2 + [(False, True)] * 2 + [(False, False)] == answers(slots, upto=4)


def test_batch_whose_model_has_ended_needs_no_slot():
    """When a process has begun another batch, of the one before only results are to be stored."""
    slots: Any = Slots(SimpleNamespace(num_processes=1))
    slots.jobs = {Job(accepted=True), Job()}

    assert (False, 0) == (slots.has_room_ahead, slots.finishing)

    for job in slots.jobs:
        job.accepted = True

    assert (True, 1) == (slots.has_room_ahead, slots.finishing)
    assert not slots.is_free


def test_solo_pool_has_nowhere_to_keep_a_batch_ready():
    """It runs a batch in the call that submits it, so there is never one behind."""
    assert [(True, True), (False, False)] == answers(Slots(SoloPool()), upto=1)


def test_slots_follow_the_pool_as_it_grows_and_shrinks():
    """With autoscale the number of processes is asked for each time."""
    pool = SimpleNamespace(num_processes=1)
    slots: Any = Slots(pool)
    slots.jobs = {Job() for _ in range(3)}

    assert (1, False, False) == (slots.processes, slots.is_free, slots.has_room_ahead)

    pool.num_processes = 4

    assert (4, True, True) == (slots.processes, slots.is_free, slots.has_room_ahead)


@pytest.mark.parametrize("unknown", [None, 0])
def test_pool_that_does_not_know_yet_counts_as_one_process(unknown: int | None):
    """There is always room for a batch to begin with."""
    assert 1 == Slots(SimpleNamespace(num_processes=unknown)).processes
