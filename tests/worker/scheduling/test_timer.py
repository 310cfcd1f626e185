"""The timer calls back in time, with an event loop or without one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import pytest
from kombu.asynchronous import Hub

from celery_batch.worker.scheduling.timer import BatchTimer

#: Long enough that a test has ended before.
NEVER = 3600.0


@dataclass(frozen=True)
class Call:
    """A callback: how late the timer says it is, and when it came, both in seconds."""

    late: float
    at: float


class Setup:
    """A timer, the calls that it made, and the event loop that drives it, if one does."""

    def __init__(self, hub: Hub | None) -> None:
        self.hub = hub
        self.calls: SimpleQueue[Call] = SimpleQueue()
        self.timer = BatchTimer(hub, self.call)

    def call(self, late: float) -> None:
        """Be called back."""
        self.calls.put(Call(late, time.monotonic()))

    def next_call(self) -> Call:
        """Return the next call; fail if there is none."""
        end = time.monotonic() + 60
        while self.hub is not None and self.calls.empty() and time.monotonic() < end:
            next(self.hub.loop)
        return self.calls.get(timeout=max(end - time.monotonic(), 0.001))

    def is_at_rest(self, seconds: float = 0.1) -> bool:
        """Whether no earlier call is ahead: the next one is the one set now."""
        started = time.monotonic()
        self.timer.set(seconds)
        return self.next_call().at - started >= seconds and self.calls.empty()


@pytest.fixture(params=["event loop", "no event loop"])
def setup(request: pytest.FixtureRequest, hub: Hub) -> Iterator[Setup]:
    """A timer with an event loop, and one without."""
    setup = Setup(hub if request.param == "event loop" else None)
    yield setup
    setup.timer.cancel()


def test_threads_set_and_cancel_at_will():
    """The timer without a loop may be used from any thread, and always calls in the end."""
    setup = Setup(None)
    timer = setup.timer

    def fiddle() -> None:
        for _ in range(30):
            timer.set(NEVER)
            timer.cancel()

    threads = [threading.Thread(target=fiddle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert setup.is_at_rest()


def test_timer_without_a_loop_has_no_thread_before_it_is_set(
    started_threads: Callable[[], set[str]],
):
    """A worker that never waits has no thread for it."""
    timer = BatchTimer(None, lambda _: None)

    assert set() == started_threads()

    timer.set(NEVER)

    assert {"batch-timer"} == started_threads()

    timer.cancel()


@pytest.fixture
def started_threads() -> Callable[[], set[str]]:
    """Tell the names of the timers' threads that were not there when the test began."""
    before = set(threading.enumerate())
    new = lambda: {thread.name for thread in set(threading.enumerate()) - before}  # noqa: E731
    return lambda: {name for name in new() if name.startswith("batch-")}


def test_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture):
    """Without an event loop its error is logged, and the timer can be set again."""
    setup = Setup(None)
    failing = BatchTimer(None, lambda late: setup.call(late) or 1 / 0)  # type: ignore[func-returns-value]
    for _ in range(2):
        failing.set(0.001)
        setup.next_call()
    while len(caplog.records) < 2:
        time.sleep(0.01)

    assert ["Could not dispatch batches"] * 2 == caplog.messages


def test_what_is_put_off_to_the_next_pass_does_not_wait_for_events(hub: Hub):
    """Where nothing else happens, each step of a chain of passes follows the last at once."""
    BatchTimer(hub, print)
    steps: list[float] = []

    def step() -> None:
        steps.append(time.monotonic())
        if len(steps) < 40:
            hub.call_soon(step)

    hub.call_later(0, step)  # as a batch that a timer sends off, on the solo pool
    broker, quiet = socket.socketpair()  # the loop only ever waits for somebody
    with broker, quiet:
        hub.add_reader(broker, print)
        while len(steps) < 40:
            next(hub.loop)
        hub.remove_reader(broker)

    # Without help each step waits a second, or for the next timer.
    assert steps[-1] - steps[0] < 20


def test_many_timers_at_once_do_not_put_the_loop_to_sleep():
    """Ten timers that are due leave the loop awake for the next, as rate limits want it."""
    hub = Hub()
    BatchTimer(hub, lambda _: None)
    rung: list[int] = []
    for number in range(25):
        hub.timer.call_after(0, rung.append, (number,))
    delays = [hub.fire_timers() for _ in range(3)]

    assert 25 == len(rung)
    assert [0.0, 0.0] == delays[:2]
