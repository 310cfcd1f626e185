"""Being called back in time, with an event loop or without one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue

import pytest
from kombu.asynchronous import Hub

from celery_batch.worker.scheduling.timer import HubTimer, ThreadTimer, Timer, timer_for

#: Long enough that a test has ended before.
NEVER = 3600.0


@dataclass(frozen=True)
class Ring:
    """A call back: how late the alarm says it is, and when it came, both in seconds."""

    late: float
    at: float


class Clockwork:
    """An alarm, the bell it rings, and whatever drives it."""

    def __init__(self, hub: Hub | None) -> None:
        self.hub = hub
        self.bell: SimpleQueue[Ring] = SimpleQueue()
        self.alarm: Timer = timer_for(hub, self.ring)

    def ring(self, late: float) -> None:
        """Be called back."""
        self.bell.put(Ring(late, time.monotonic()))

    def next_ring(self) -> Ring:
        """Return the next ring; fail if there is none."""
        end = time.monotonic() + 10
        while self.hub is not None and self.bell.empty() and time.monotonic() < end:
            next(self.hub.loop)
        return self.bell.get(timeout=max(end - time.monotonic(), 0.001))

    def is_at_rest(self) -> bool:
        """Whether nothing is left of earlier calls: the next ring is the one asked for now."""
        started = time.monotonic()
        self.alarm.set(0.1)
        return self.next_ring().at - started >= 0.1 and self.bell.empty()


@pytest.fixture(params=["event loop", "no event loop"])
def clockwork(request: pytest.FixtureRequest, hub: Hub) -> Iterator[Clockwork]:
    """Both kinds of alarm, one after the other."""
    clockwork = Clockwork(hub if request.param == "event loop" else None)
    yield clockwork
    clockwork.alarm.cancel()


def test_alarm_rings_once_not_early(clockwork: Clockwork):
    """It calls back when the time has passed, and then is still."""
    started = time.monotonic()
    clockwork.alarm.set(0.05)
    ring = clockwork.next_ring()

    assert ring.at - started >= 0.05
    assert clockwork.is_at_rest()


def test_alarm_can_be_set_again_after_it_rang(clockwork: Clockwork):
    """Each ring is followed by the next that is asked for."""
    for _ in range(3):
        clockwork.alarm.set(0.001)
        clockwork.next_ring()

    assert clockwork.is_at_rest()


def test_earlier_call_wins(clockwork: Clockwork):
    """Set to an earlier time, it does not wait for the later one, and rings once."""
    for seconds in (NEVER, 0.05, 0.01):
        clockwork.alarm.set(seconds)
    clockwork.next_ring()

    assert clockwork.is_at_rest()


def test_later_call_does_not_put_off_an_earlier_one(clockwork: Clockwork):
    """Set to a later time, it rings when it was to ring before; once."""
    clockwork.alarm.set(0.01)
    clockwork.alarm.set(NEVER)
    clockwork.next_ring()

    assert clockwork.is_at_rest()


def test_cancelled_alarm_does_not_ring(clockwork: Clockwork):
    """What was called off is not heard, and the alarm can be set anew."""
    clockwork.alarm.set(0.01)
    clockwork.alarm.cancel()
    clockwork.alarm.cancel()

    assert clockwork.is_at_rest()


def test_alarm_may_be_set_while_it_rings(clockwork: Clockwork):
    """Whoever is woken may ask to be woken again."""
    rings = count(1)

    def ring(late: float) -> None:
        if next(rings) < 3:
            alarm.set(0.001)
        else:
            clockwork.ring(late)

    alarm = timer_for(clockwork.hub, ring)
    alarm.set(0.001)
    clockwork.next_ring()

    assert 4 == next(rings)


def test_late_loop_is_told_how_late_it_was(hub: Hub):
    """An event loop that was busy elsewhere rings late, and says by how much."""
    clockwork = Clockwork(hub)
    clockwork.alarm.set(0.01)
    time.sleep(0.2)  # the loop is busy: this is the fact under test

    assert 0.15 < clockwork.next_ring().late < 30


def test_threads_set_and_cancel_at_will():
    """The alarm without a loop may be used from any thread, and always rings in the end."""
    clockwork = Clockwork(None)
    alarm = clockwork.alarm

    def fiddle() -> None:
        for _ in range(200):
            alarm.set(NEVER)
            alarm.cancel()

    threads = [threading.Thread(target=fiddle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert clockwork.is_at_rest()


def test_alarm_of_its_own_thread_costs_no_thread_before_it_is_set(
    started_threads: Callable[[], set[str]],
):
    """A worker that never waits has no thread for it; one that does has one."""
    alarm = ThreadTimer(lambda _: None)

    assert set() == started_threads()

    alarm.set(NEVER)
    alarm.set(1.0)

    assert {"batch-alarm"} == started_threads()


@pytest.fixture
def started_threads() -> Callable[[], set[str]]:
    """Tell the names of the threads that were not there when the test began."""
    before = set(threading.enumerate())
    return lambda: {thread.name for thread in set(threading.enumerate()) - before}


def test_worker_without_an_event_loop_gets_a_thread(hub: Hub):
    """The kind of alarm follows from the worker."""
    assert isinstance(timer_for(None, print), ThreadTimer)
    assert isinstance(timer_for(hub, print), HubTimer)


def test_what_is_put_off_to_the_next_pass_does_not_wait_for_events(hub: Hub):
    """Where nothing else happens, each step of a chain of passes follows the last at once."""
    timer_for(hub, print)
    steps: list[float] = []

    def step() -> None:
        steps.append(time.monotonic())
        if len(steps) < 5:
            hub.call_soon(step)

    hub.call_later(0, step)  # as a batch that a timer sends off, on the solo pool
    broker, quiet = socket.socketpair()  # the loop only ever waits for somebody
    with broker, quiet:
        hub.add_reader(broker, print)
        while len(steps) < 5:
            next(hub.loop)
        hub.remove_reader(broker)

    # Without help each step waits a second, or for the next timer.
    assert steps[-1] - steps[0] < 3


def test_many_timers_at_once_do_not_put_the_loop_to_sleep():
    """Ten timers that are due leave the loop awake for the next, as rate limits want it."""
    hub = Hub()
    timer_for(hub, lambda _: None)
    rung: list[int] = []
    for number in range(25):
        hub.timer.call_after(0, rung.append, (number,))
    delays = [hub.fire_timers() for _ in range(3)]

    assert 25 == len(rung)
    assert [0.0, 0.0] == delays[:2]
