"""Celery's timer thread, which serves brokers that need no event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest
from celery.utils.timer2 import Timer
from kombu.asynchronous.timer import Timer as LoopTimer

from celery_batch.compat.celery import fire_on_time


@pytest.fixture
def timer() -> Iterator[Timer]:
    """A timer whose thread waits for something far away."""
    timer = Timer(max_interval=30.0)
    fire_on_time(timer)
    fire_on_time(timer)  # each consumer asks for it
    timer.call_after(3600, print)
    time.sleep(0.1)  # the thread waits: this is the state under test
    yield timer
    stopping = threading.Thread(target=timer.stop)
    stopping.start()
    while stopping.is_alive():
        timer.call_after(0, threading.get_ident)
        stopping.join(0.05)


def test_an_earlier_entry_is_on_time(timer: Timer):
    """It does not wait for the end of the sleep, from whichever thread it comes."""
    calls: SimpleQueue[int] = SimpleQueue()
    for number in range(3):
        timer.call_after(0.01, calls.put, (number,))
        assert number == calls.get(timeout=60)
    soon = time.monotonic() + 1.0
    for number in (2, 1, 0):
        timer.call_at(soon + 0.01 * number, calls.put, (number,))

    assert [0, 1, 2] == [calls.get(timeout=60) for _ in range(3)]


def test_a_cancelled_entry_is_not_called(timer: Timer):
    """The next one is, at its time."""
    calls: SimpleQueue[int] = SimpleQueue()
    timer.call_after(2.0, calls.put, (1,)).cancel()
    timer.call_after(2.1, calls.put, (2,))

    assert 2 == calls.get(timeout=60)
    assert calls.empty()


def test_a_timer_that_is_not_known_is_left_as_it_is(caplog: pytest.LogCaptureFixture):
    """An event loop's is on time by itself; of one that has changed the log tells."""
    loop_timer, changed = LoopTimer(), Timer()
    del changed.not_empty
    before = dict(vars(loop_timer)), dict(vars(changed))
    fire_on_time(loop_timer)
    fire_on_time(changed)

    assert before == (vars(loop_timer), vars(changed))
    assert ["this Celery's timer has no not_empty: an eta may be late"] == caplog.messages
