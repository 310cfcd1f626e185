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

from celery_batch.client.results.pending import _call_each
from celery_batch.compat.vine import BarrierCounter
from tests.services.fake_worker import FakeWorker


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
    counter = BarrierCounter(_call_each)
    group = SlowGroup(2)
    group.finalize()
    done: list[int] = []
    group.then(lambda: done.append(1))
    group.together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(counter.count, group) for _ in range(2)]:
            future.result()

    assert ([1], 2) == (done, group.number)


def test_group_that_is_never_finished_leaves_nothing_behind():
    """One that its maker drops is gone."""
    counter = BarrierCounter(_call_each)
    group = Group(2)
    counter.count(group)
    counter.complete()
    before = len(counter._unfinished)
    found = weakref.ref(group)
    del group
    gc.collect()

    assert 1 == before
    assert (None, 0) == (found(), len(counter._unfinished))


def test_group_that_is_built_slowly_is_told():
    """A group that takes long to build is told all the same, however its members came."""
    counter = BarrierCounter(_call_each)
    group = Group(2)
    done: list[int] = []
    group.then(lambda: done.append(1))
    counter.count(group)
    counter.complete()
    counter.count(group)
    group.finalized = True
    before = [*done]
    counter.complete()

    assert ([], [1]) == (before, done)
    assert 0 == len(counter._unfinished)


def test_group_that_was_told_already_is_not_told_again():
    """Where Celery itself has found a group whole, its callback is called once."""
    counter = BarrierCounter(_call_each)
    group = Group(1)
    done: list[int] = []
    counter.count(group)
    group.finalize()
    group.then(lambda: done.append(1))
    counter.complete()

    assert [1] == done


def test_failing_callback_of_a_group_is_logged(caplog: pytest.LogCaptureFixture):
    """What one group's callback raises keeps no other from being told."""
    counter = BarrierCounter(_call_each)
    groups = [Group(1), Group(1)]
    done: list[int] = []
    groups[0].then(lambda: 1 / 0)
    groups[1].then(lambda: done.append(1))
    for group in groups:
        counter.count(group)
        group.finalized = True
    with caplog.at_level(logging.ERROR):
        counter.complete()

    assert [1] == done
    assert "A callback of a result has failed" in caplog.text


def test_joined_sets_leave_nothing_behind(background: FakeWorker):
    """Sets of results that were joined and dropped are not looked at for ever."""
    counter = background.listener.registry.barriers
    for _ in range(5):
        results = background.ask_many(2)
        together = ResultSet([], app=background.app)
        for result in results:
            together.add(result)
            background.answer(result, 1)
        assert [1, 1] == together.join(timeout=20.0)
    del together, results, result
    counter.complete()
    gc.collect()

    assert 0 == len(counter._unfinished)
