"""Who waits for which reply, without any server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_batch.client.results.pending import PendingResult, PendingResults
from celery_batch.protocol import (
    STARTED_ID,
)


@pytest.fixture
def pending() -> PendingResults:
    """No pending results."""
    return PendingResults(None)


def expected(pending: PendingResults, *names: str) -> list[PendingResult]:
    """Return replies that are to come."""
    return [pending.expect(pending.get(name)) for name in names]


def polled(pending: PendingResults) -> list[str]:
    """Return the ids of the tasks that are to be polled now."""
    return [each.task_id for each in pending.take_due(10)]


def test_id_that_is_used_again_has_a_new_reply(pending: PendingResults):
    """A task that is sent again under its id does not have the earlier answer."""
    (first,) = expected(pending, "1")
    pending.deliver([("1", b"a")])
    (second,) = expected(pending, "1")
    pending.deliver([("1", b"b")])

    assert [b"a", b"b"] == [first.value, second.value]


def test_stale_reply_is_looked_for_at_once(
    pending: PendingResults, monkeypatch: pytest.MonkeyPatch
):
    """Who begins to wait late, or after an interruption, does not wait for a sweep first."""
    now = 100.0
    urgent: list[bool] = []
    pending.on_awaited = urgent.append
    monkeypatch.setattr("time.monotonic", lambda: now)
    late, interrupted, fresh = expected(pending, "late", "interrupted", "fresh")
    now += 0.5
    pending.expect(fresh)
    pending.poll_all()
    pending.expect(fresh)
    late.checked_at -= 10
    now += 0.1
    fresh.checked_at = now
    for reply in (late, interrupted, fresh):
        pending.add_callback(reply, print)

    assert ["late", "interrupted"] == polled(pending)
    assert [True, True, True, False] == urgent


def test_threads_share_an_inbox(pending: PendingResults):
    """Threads that expect, watch and leave while replies come lose nothing."""
    number, threads = 2000, 8
    told: list[str] = []

    def ask(part: int) -> list[PendingResult]:
        kept = []
        for n in range(part, number, threads):
            (reply,) = expected(pending, str(n))
            if not pending.add_callback(reply, lambda n=n: told.append(str(n))):
                told.append(str(n))
            other = threading.Event()
            if pending.add_callback(reply, other.set):
                pending.remove_callback(reply, other.set)
            kept.append(reply)
        return kept

    with ThreadPoolExecutor(threads) as pool:
        asking = [pool.submit(ask, part) for part in range(threads)]
        while not all(future.done() for future in asking):
            pending.deliver([(str(n), b"x") for n in range(number)])
        kept = [future.result() for future in asking]
    pending.deliver([(str(n), b"x") for n in range(number)])

    assert sorted(map(str, range(number))) == sorted(told)
    assert {b"x"} == {reply.value for part in kept for reply in part}


def test_look_that_was_overtaken_takes_nothing_back(pending: PendingResults):
    """What is told while a look is on its way is newer than what the look finds."""
    reply = pending.get("1")
    pending.add_state_callback(reply, lambda: None, None)
    before = reply.latest
    pending.deliver([(STARTED_ID + "1", b"started")])
    pending.deliver_states([(reply, before, b"")])
    kept = reply.latest
    pending.deliver_states([(reply, kept, b"")])

    assert (b"started", b"") == (kept, reply.latest)
