"""When a request may run: ``expires``, ``eta``, ``countdown``, ``rate_limit``."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError

from tests.services.place import Place, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_expired_at_receipt(place: Place):
    """A request that comes after its ``expires`` is revoked and never runs."""
    past = datetime.now(UTC) - timedelta(seconds=5)
    stale, fresh = place.echo.apply_async(("stale",), expires=past), place.echo.delay("fresh")

    assert "fresh" == fresh.get(timeout=30)
    with pytest.raises(TaskRevokedError, match="expired"):
        stale.get(timeout=30)
    assert ["fresh"] == place.items("echo")


def test_expired_in_line(place: Place):
    """A request whose ``expires`` passes while it waits is left out when its batch forms."""
    gate = place.close_gate()
    expires = datetime.now(UTC) + timedelta(seconds=2)
    stale = place.echo.apply_async(("stale",), expires=expires)
    fresh = place.echo.apply_async(("fresh",), expires=300)
    place.wait_for_buffered("f.echo", 2)
    eventually(lambda: datetime.now(UTC) > expires, "the time to pass")
    place.open_gate(gate)

    assert "fresh" == fresh.get(timeout=30)
    with pytest.raises(TaskRevokedError, match="expired"):
        stale.get(timeout=30)
    assert ["fresh"] == place.items("echo")


@pytest.mark.pools(*EVERY_POOL)
def test_countdown_and_eta_are_kept(place: Place):
    """A request runs no earlier than its time, and then together with others."""
    begin = time.time()
    eta = datetime.now(UTC) + timedelta(seconds=1)
    results = [
        place.double.apply_async((1,), countdown=1),
        place.double.apply_async((2,), eta=eta),
        place.double.delay(3),
    ]
    assert 6 == results[2].get(timeout=30)
    early = place.items("double")
    answers = place.get(results)

    assert [2, 4, 6] == answers
    assert [3] == early or time.time() - begin > 1
    assert time.time() - begin >= 1


def test_rate_limit_holds_back_items(place: Place):
    """``rate_limit`` counts items, and lets no more of them start than it says."""
    begin = time.time()
    results = [place.rated.delay(n) for n in range(8)]
    answers = place.get(results)
    facts = place.recall("rated")
    started = [fact["at"] for fact in facts for _ in fact["items"]]

    assert list(range(8)) == answers
    # The bucket lets the first through at once, the others one each 0.2 s.
    assert time.time() - begin > 1.0
    assert max(started) - min(started) > 1.0


def test_rate_limit_can_be_changed_while_the_worker_runs(place: Place):
    """``control.rate_limit`` takes effect for batch tasks."""
    options = {"reply": True, "timeout": 60, "limit": 1, "destination": [place.worker.name]}
    place.app.control.rate_limit("f.rated", 0, **options)
    begin = time.time()
    answers = place.get([place.rated.delay(n) for n in range(60)])
    took = time.time() - begin
    place.app.control.rate_limit("f.rated", "5/s", **options)

    assert list(range(60)) == answers
    assert took < 10.0  # twelve at five a second
