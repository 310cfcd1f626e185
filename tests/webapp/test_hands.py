"""Threads that work off one line: few where all get on, more where some are held up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from webapp.hands import Hands

MOST = 8


@pytest.fixture
def hands() -> Iterator[Hands]:
    """Some, and none of them blocked for good."""
    hands = Hands(MOST)
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


def test_threads_end_when_it_is_over() -> None:
    """After a shutdown none waits for jobs any more."""
    before = set(threading.enumerate())
    hands = Hands(MOST)
    end = threading.Event()
    hands.give(end.set)
    end.wait(60)

    hands.shutdown()

    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
