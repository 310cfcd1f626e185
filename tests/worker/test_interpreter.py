"""Who has the interpreter while a device waits for its next batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from celery_batch.worker.executor import interpreter


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave this process as it is."""
    before = sys.getswitchinterval()
    monkeypatch.setattr(interpreter, "_shared", None)
    yield
    sys.setswitchinterval(before)


def test_without_clerks_nothing_is_changed():
    """A process whose main thread is alone keeps what Python or its user has set."""
    before = sys.getswitchinterval()
    interpreter.keep()
    interpreter.share()

    assert before == sys.getswitchinterval()


def test_the_main_thread_keeps_it_until_it_shares_again():
    """What is short while models run is long on the way from one to the next."""
    interpreter.divide()
    shared = sys.getswitchinterval()
    interpreter.keep()
    kept = sys.getswitchinterval()
    interpreter.share()

    assert shared < kept
    assert shared == sys.getswitchinterval()


def test_shorter_turns_of_a_users_own_stay():
    """Who has set less than we would has his reasons."""
    sys.setswitchinterval(0.00005)
    interpreter.divide()
    interpreter.keep()
    interpreter.share()

    assert pytest.approx(0.00005, rel=0.1) == sys.getswitchinterval()
