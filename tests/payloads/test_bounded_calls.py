"""Calls that do not return, or not in the time that their callers have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from celery_batch.payloads import bounded_calls
from celery_batch.payloads.bounded_calls import BoundedCalls
from celery_batch.processes.managed_process import wait_until


@pytest.fixture
def block() -> Iterator[Callable[[], object]]:
    """A call that returns at the end of the test."""
    end = threading.Event()
    yield end.wait
    end.set()


def leave_behind(calls: BoundedCalls, call: Callable[[], object]) -> None:
    """Have a caller give up on a call."""
    with pytest.raises(TimeoutError, match=r"not returned in 0\.01 s"):
        calls.run(call, 0.01)


def test_a_caller_without_patience_keeps_no_other_from_trying(block: Callable[[], object]):
    """Its call may only be slow."""
    calls = BoundedCalls()
    leave_behind(calls, block)

    assert calls.run(lambda: "data", 10.0) == "data"


def test_a_blocked_call_has_others_fail_until_it_returns(monkeypatch: pytest.MonkeyPatch):
    """They would block as well."""
    monkeypatch.setattr(bounded_calls, "_BLOCKED_AFTER", 0.0)
    calls, end = BoundedCalls(), threading.Event()
    leave_behind(calls, end.wait)
    with pytest.raises(TimeoutError, match="an earlier call"):
        calls.run(end.is_set, 10.0)
    end.set()

    def why_not() -> str:
        try:
            return "" if calls.run(end.is_set, 10.0) else "no result"
        except TimeoutError as error:
            return str(error)

    wait_until(why_not, [], what="call", timeout=20.0)


def test_few_calls_are_left_behind(block: Callable[[], object]):
    """Threads do not pile up, however short the time of each caller is."""
    calls, before = BoundedCalls(), threading.active_count()
    for _ in range(8):
        leave_behind(calls, block)
    with pytest.raises(TimeoutError, match="an earlier call"):
        calls.run(block, 0.01)

    assert threading.active_count() <= before + 8


def test_no_call_begins_without_time():
    """Its caller would not learn what became of it."""
    began: list[float] = []
    with pytest.raises(TimeoutError, match="no time is left"):
        BoundedCalls().run(lambda: began.append(time.monotonic()), 0.0)

    assert not began
