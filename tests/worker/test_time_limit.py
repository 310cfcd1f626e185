"""A soft time limit strikes in the model, and nowhere else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler

from celery_batch.testing import ManualClock
from celery_batch.worker.executor import time_limit
from celery_batch.worker.executor.time_limit import LimitSignals, SoftLimit


@pytest.fixture(autouse=True)
def in_a_pool_process() -> Iterator[None]:
    """Signals as billiard sets them up in a pool process."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    yield
    signal.signal(SIG_SOFT_TIMEOUT, before)


def strike() -> None:
    """Let the limit pass, as the pool does."""
    os.kill(os.getpid(), SIG_SOFT_TIMEOUT)


def test_strikes_in_the_model():
    """While the model runs the limit is raised at once."""
    with SoftLimit() as limit, pytest.raises(SoftTimeLimitExceeded), limit.in_model():
        strike()


def test_waits_for_the_model():
    """A limit that passes before the model is raised when the model would start."""
    with SoftLimit() as limit:
        strike()
        with pytest.raises(SoftTimeLimitExceeded), limit.in_model():
            pytest.fail("the model must not run any more")


def test_comes_too_late_after_the_model():
    """Once the model has answered, its answers are settled in peace."""
    with SoftLimit() as limit:
        with limit.in_model():
            answered = True
        strike()

    assert answered


def test_leaves_the_process_as_it_was():
    """Behind a batch the signal is the pool's again."""
    with SoftLimit():
        pass

    with pytest.raises(SoftTimeLimitExceeded):
        strike()


def test_keeps_out_of_other_processes():
    """Where the signal is not the pool's, nothing is changed."""
    before = signal.signal(SIG_SOFT_TIMEOUT, signal.SIG_IGN)
    with SoftLimit():
        during = signal.getsignal(SIG_SOFT_TIMEOUT)
    signal.signal(SIG_SOFT_TIMEOUT, before)

    assert signal.SIG_IGN == during


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The time by which limits are due."""
    clock = ManualClock()
    monkeypatch.setattr(time_limit.time, "monotonic", clock)
    return clock


def test_signal_for_another_batch_leaves_the_model_alone(clock: ManualClock):
    """A signal before this batch's time is up is for the one before it."""
    limit = LimitSignals().aim(10.0)
    with limit.in_model():
        clock.advance(9.0)
        strike()
        answered = True

    assert answered


def test_signal_when_the_time_is_up_strikes(clock: ManualClock):
    """A batch whose own time is up is the one that the signal is for."""
    limit = LimitSignals().aim(10.0)
    clock.advance(10.0)
    with limit.in_model(), pytest.raises(SoftTimeLimitExceeded):
        strike()


def test_batch_without_a_limit_is_never_struck(clock: ManualClock):
    """Whatever signals come, they are for others."""
    limit = LimitSignals().aim(None)
    with limit.in_model():
        clock.advance(1e9)
        strike()
        answered = True

    assert answered


def test_ordinary_task_is_struck_as_ever():
    """While no batch runs the signal is the pool's own."""
    signals = LimitSignals()
    signals.aim(10.0)
    signals.leave_alone()

    with pytest.raises(SoftTimeLimitExceeded):
        strike()
