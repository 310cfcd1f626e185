"""A soft time limit interrupts the model, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler

from celery_batch.testing import ManualClock
from celery_batch.worker.executor import time_limit
from celery_batch.worker.executor.time_limit import SoftLimit


@pytest.fixture(autouse=True)
def in_a_pool_process() -> Iterator[None]:
    """Signals as billiard sets them up in a pool process."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    yield
    signal.signal(SIG_SOFT_TIMEOUT, before)


def send_signal() -> None:
    """Send the signal of a soft time limit, as the pool does."""
    os.kill(os.getpid(), SIG_SOFT_TIMEOUT)


def test_interrupts_the_model():
    """While the model runs the limit is raised at once."""
    with SoftLimit() as limit, pytest.raises(SoftTimeLimitExceeded), limit.in_model():
        send_signal()


def test_waits_for_the_model():
    """A limit that expires before the model is raised when the model would start."""
    with SoftLimit() as limit:
        send_signal()
        with pytest.raises(SoftTimeLimitExceeded), limit.in_model():
            pytest.fail("the model must not run any more")


def test_comes_too_late_after_the_model():
    """Once the model has returned, the tracers are not interrupted."""
    with SoftLimit() as limit:
        with limit.in_model():
            answered = True
        send_signal()

    assert answered


def test_restores_the_handler():
    """After a batch the signal is the pool's again."""
    with SoftLimit():
        pass

    with pytest.raises(SoftTimeLimitExceeded):
        send_signal()


def test_changes_nothing_in_other_processes():
    """Where the signal is not the pool's, nothing is changed."""
    before = signal.signal(SIG_SOFT_TIMEOUT, signal.SIG_IGN)
    with SoftLimit():
        during = signal.getsignal(SIG_SOFT_TIMEOUT)
    signal.signal(SIG_SOFT_TIMEOUT, before)

    assert signal.SIG_IGN == during


def handling(seconds: float | None) -> SoftLimit:
    """Return a limit that handles signals in a process with other batches."""
    limit = SoftLimit(seconds)
    limit.handle_signals()
    return limit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the limits."""
    clock = ManualClock()
    monkeypatch.setattr(time_limit.time, "monotonic", clock)
    return clock


def test_signal_for_another_batch_leaves_the_model_alone(clock: ManualClock):
    """A signal before this batch's time is up is for the one before it."""
    limit = handling(10.0)
    with limit.in_model():
        clock.advance(9.0)
        send_signal()
        answered = True

    assert answered


def test_signal_when_the_time_is_up_interrupts(clock: ManualClock):
    """A batch whose own time is up is the one that the signal is for."""
    limit = handling(10.0)
    clock.advance(10.0)
    with limit.in_model(), pytest.raises(SoftTimeLimitExceeded):
        send_signal()


def test_batch_without_a_limit_is_never_interrupted(clock: ManualClock):
    """All signals are for other batches."""
    limit = handling(None)
    with limit.in_model():
        clock.advance(1e9)
        send_signal()
        answered = True

    assert answered
