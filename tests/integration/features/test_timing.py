"""When a request may run: ``expires``, ``eta``, ``countdown``, ``rate_limit``."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError

from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_expired_at_receipt(shared: SharedSetup):
    """A request that comes after its ``expires`` is revoked and never runs."""
    past = datetime.now(UTC) - timedelta(seconds=5)
    stale, fresh = shared.echo.apply_async(("stale",), expires=past), shared.echo.delay("fresh")

    assert "fresh" == fresh.get(timeout=30)
    with pytest.raises(TaskRevokedError, match="expired"):
        stale.get(timeout=30)
    assert ["fresh"] == shared.items("echo")


def test_expired_in_line(shared: SharedSetup):
    """A request whose ``expires`` passes while it waits is left out when its batch forms."""
    gate = shared.close_gate()
    fresh = shared.echo.apply_async(("fresh",), expires=300)
    send = lambda end: shared.echo.apply_async(("stale",), expires=end)  # noqa: E731
    stale, expires = shared.send_to_expire(send, "f.echo", 2)
    eventually(lambda: datetime.now(UTC) > expires, "the time to pass")
    shared.open_gate(gate)

    assert "fresh" == fresh.get(timeout=30)
    with pytest.raises(TaskRevokedError, match="expired"):
        stale.get(timeout=30)
    assert ["fresh"] == shared.items("echo")


@pytest.mark.pools(*EVERY_POOL)
def test_countdown_and_eta_are_kept(shared: SharedSetup):
    """A request runs no earlier than its time, and then together with others."""
    begin = time.time()
    eta = datetime.now(UTC) + timedelta(seconds=1)
    results = [
        shared.double.apply_async((1,), countdown=1),
        shared.double.apply_async((2,), eta=eta),
        shared.double.delay(3),
    ]
    assert 6 == results[2].get(timeout=30)
    early = shared.items("double")
    answers = shared.get(results)

    assert [2, 4, 6] == answers
    assert [3] == early or time.time() - begin > 1
    assert time.time() - begin >= 1


def test_rate_limit_holds_back_items(shared: SharedSetup):
    """``rate_limit`` counts items, and lets no more of them start than it says."""
    begin = time.time()
    results = [shared.rated.delay(n) for n in range(8)]
    answers = shared.get(results)
    facts = shared.recall("rated")
    started = [fact["at"] for fact in facts for _ in fact["items"]]

    assert list(range(8)) == answers
    # The bucket lets the first through at once, the others one each 0.2 s.
    assert time.time() - begin > 1.0
    assert max(started) - min(started) > 1.0


def test_rate_limit_can_be_changed_while_the_worker_runs(shared: SharedSetup):
    """``control.rate_limit`` takes effect for batch tasks."""
    options = {"reply": True, "timeout": 60, "limit": 1, "destination": [shared.worker.name]}
    shared.app.control.rate_limit("f.rated", 0, **options)
    begin = time.time()
    answers = shared.get([shared.rated.delay(n) for n in range(60)])
    took = time.time() - begin
    shared.app.control.rate_limit("f.rated", "5/s", **options)

    assert list(range(60)) == answers
    assert took < 10.0  # twelve at five a second
