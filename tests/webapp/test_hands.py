"""Threads that work off one line: few where all get on, more where some are held up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from webapp.hands import Hands

MOST = 8


class Left:
    """What jobs leave behind, and what of it has been passed on."""

    def __init__(self) -> None:
        self.here: list[int] = []
        self.there: list[int] = []
        self.passed = threading.Condition()

    def rest(self) -> None:
        """Pass it on."""
        with self.passed:
            self.there += self.here
            self.here.clear()
            self.passed.notify_all()

    def await_there(self, number: int) -> bool:
        """Wait until so much has been passed on."""
        with self.passed:
            return self.passed.wait_for(lambda: len(self.there) >= number, 60)


@pytest.fixture
def left() -> Left:
    """What is left behind."""
    return Left()


@pytest.fixture
def hands(left: Left) -> Iterator[Hands]:
    """Some, and none of them blocked for good."""
    hands = Hands(MOST, left.rest)
    yield hands
    hands.shutdown()


def test_jobs_are_done_in_their_order(hands: Hands) -> None:
    """With nobody held up, the line is worked off as it stands."""
    done: list[int] = []
    end = threading.Event()
    for number in range(1000):
        hands.give(lambda number=number: done.append(number))  # type: ignore[misc]
    hands.give(end.set)

    assert end.wait(60)
    assert [*range(1000)] == sorted(done)


def test_one_that_is_held_up_holds_up_nobody(hands: Hands) -> None:
    """As many as there are threads, but for one, may block, and the rest is done."""
    held, end = threading.Event(), threading.Event()
    try:
        for _ in range(MOST - 1):
            hands.give(held.wait)
        hands.give(end.set)

        assert end.wait(60)
    finally:
        held.set()


def test_many_that_wait_a_little_each_wait_together(hands: Hands) -> None:
    """Though each job is done soon, more threads come where all but wait."""
    names: set[str] = set()
    end = threading.Event()

    def nap() -> None:
        names.add(threading.current_thread().name)
        threading.Event().wait(0.001)

    for _ in range(300):
        hands.give(nap)
    hands.give(end.set)

    assert end.wait(60)
    assert len(names) > 1


def test_there_are_never_more_than_allowed(hands: Hands) -> None:
    """However many are held up, the next waits in line, and is done when one gets on."""
    held, end = threading.Event(), threading.Event()
    inside, most, guard = [0], [0], threading.Lock()

    def hold() -> None:
        with guard:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        held.wait()
        with guard:
            inside[0] -= 1

    for _ in range(3 * MOST):
        hands.give(hold)
    hands.give(end.set)
    while inside[0] < MOST:
        threading.Event().wait(0.001)
    held.set()

    assert end.wait(60)
    assert most[0] <= MOST


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_job_that_fails_is_told_of_and_costs_no_thread(
    hands: Hands, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """Even those that would end a thread: more of them than there are threads change nothing."""
    end = threading.Event()

    def fail() -> None:
        raise error("as asked for")

    with caplog.at_level(logging.ERROR, "webapp.hands"):
        for _ in range(2 * MOST):
            hands.give(fail)
        hands.give(end.set)

        assert end.wait(60)
    assert len(caplog.records) == 2 * MOST


def test_what_a_job_has_left_behind_does_not_wait_for_one_that_is_held_up(
    hands: Hands, left: Left
) -> None:
    """Though the same thread has begun another job that blocks, it is passed on."""
    first, held = threading.Event(), threading.Event()

    def leave() -> None:
        first.wait()  # until the next job stands behind this one
        left.here.append(1)

    try:
        hands.give(leave)
        hands.give(held.wait)
        first.set()

        assert left.await_there(1)
    finally:
        held.set()


def test_a_line_without_end_keeps_nothing_back(hands: Hands, left: Left) -> None:
    """Where jobs follow each other without a pause, what they leave is passed on meanwhile."""
    over = threading.Event()

    def go_on() -> None:
        left.here.append(1)
        if not over.is_set():
            hands.give(go_on)

    hands.give(go_on)
    passed_on = left.await_there(100)
    over.set()

    assert passed_on


def test_threads_end_when_it_is_over() -> None:
    """After a shutdown none waits for jobs any more."""
    before = set(threading.enumerate())
    hands = Hands(MOST, lambda: None)
    end = threading.Event()
    hands.give(end.set)
    end.wait(60)

    hands.shutdown()

    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
