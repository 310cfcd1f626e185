"""Groups of results are counted by whatever thread hears of a member."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from celery.result import ResultSet
from vine import barrier

from celery_batch.client.results.pending import PendingResults
from tests.services.teller import Teller


class Group(barrier):
    """Celery's barrier, of a size that is known, still being built."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size)
        self.finalized = False


class SlowGroup(Group):
    """One that two threads read before either has counted, if they may."""

    together: threading.Barrier | None = None
    number = 0

    @property
    def _value(self) -> int:
        found = self.number
        if self.together is not None:
            with suppress(threading.BrokenBarrierError):
                self.together.wait(0.2)
        return found

    @_value.setter
    def _value(self, number: int) -> None:
        self.number = number


def test_two_threads_lose_no_member():
    """Members that are heard of and found at the same moment are both counted."""
    registry = PendingResults(None)
    group = SlowGroup(2)
    group.finalize()
    done: list[int] = []
    group.then(lambda: done.append(1))
    group.together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(registry.count_barrier_member, group) for _ in range(2)]:
            future.result()

    assert ([1], 2) == (done, group.number)


def test_group_that_is_never_finished_leaves_nothing_behind():
    """One that its maker drops is gone."""
    registry = PendingResults(None)
    group = Group(2)
    registry.count_barrier_member(group)
    registry.complete_barriers()
    before = len(registry._unfinished)
    found = weakref.ref(group)
    del group
    gc.collect()

    assert 1 == before
    assert (None, 0) == (found(), len(registry._unfinished))


def test_group_that_is_built_slowly_is_told():
    """A group that takes long to build is told all the same, however its members came."""
    registry = PendingResults(None)
    group = Group(2)
    done: list[int] = []
    group.then(lambda: done.append(1))
    registry.count_barrier_member(group)
    registry.complete_barriers()
    registry.count_barrier_member(group)
    group.finalized = True
    before = [*done]
    registry.complete_barriers()

    assert ([], [1]) == (before, done)
    assert 0 == len(registry._unfinished)


def test_group_that_was_told_already_is_not_told_again():
    """Where Celery itself has found a group whole, its callback is called once."""
    registry = PendingResults(None)
    group = Group(1)
    done: list[int] = []
    registry.count_barrier_member(group)
    group.finalize()
    group.then(lambda: done.append(1))
    registry.complete_barriers()

    assert [1] == done


def test_failing_callback_of_a_group_is_logged(caplog: pytest.LogCaptureFixture):
    """What one group's callback raises keeps no other from being told."""
    registry = PendingResults(None)
    groups = [Group(1), Group(1)]
    done: list[int] = []
    groups[0].then(lambda: 1 / 0)
    groups[1].then(lambda: done.append(1))
    for group in groups:
        registry.count_barrier_member(group)
        group.finalized = True
    with caplog.at_level(logging.ERROR):
        registry.complete_barriers()

    assert [1] == done
    assert "A callback of a result has failed" in caplog.text


def test_joined_sets_leave_nothing_behind(background: Teller):
    """Sets of results that were joined and dropped are not looked at for ever."""
    registry = background.listener.registry
    for _ in range(5):
        results = background.ask_many(2)
        together = ResultSet([], app=background.app)
        for result in results:
            together.add(result)
            background.answer(result, 1)
        assert [1, 1] == together.join(timeout=20.0)
    del together, results, result
    registry.complete_barriers()
    gc.collect()

    assert 0 == len(registry._unfinished)
