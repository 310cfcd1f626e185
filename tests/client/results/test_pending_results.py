"""Who waits for which reply, without any server."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from vine import barrier

from celery_batch.client.results.pending import POLL_NOTIFIED, PendingResult, PendingResults
from celery_batch.protocol import (
    STARTED_ID,
    BatchInfo,
    batch_facts,
    pack_waits,
    read_replies,
    write_replies,
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


def test_who_watches_is_told_once(pending: PendingResults):
    """A watcher is called when its reply comes, and not again."""
    one, other = expected(pending, "1", "2")
    told: list[str] = []
    is_waiting = (
        pending.add_callback(one, lambda: told.append("one")),
        pending.add_callback(other, told.clear),
    )
    pending.deliver([("1", b"a")])
    pending.deliver([("1", b"b")])

    assert (True, True) == is_waiting
    assert (["one"], b"a", None) == (told, one.value, other.value)


def test_reply_that_is_there_needs_no_watcher(pending: PendingResults):
    """Who comes late is told so, and never called."""
    (reply,) = expected(pending, "1")
    pending.deliver([("1", b"a")])

    assert not pending.add_callback(reply, pytest.fail)


def test_one_task_has_one_reply(pending: PendingResults):
    """All results of one id share what is heard."""
    (reply,) = expected(pending, "1")

    assert pending.get("1") is reply
    assert pending.get("2") is not reply


def test_id_that_is_used_again_has_a_new_reply(pending: PendingResults):
    """A task that is sent again under its id does not have the earlier answer."""
    (first,) = expected(pending, "1")
    pending.deliver([("1", b"a")])
    (second,) = expected(pending, "1")
    pending.deliver([("1", b"b")])

    assert [b"a", b"b"] == [first.value, second.value]


def test_what_nobody_asked_is_ignored(pending: PendingResults):
    """A reply to an id that nobody holds leaves nothing behind."""
    pending.deliver([("1", b"a")])

    assert 0 == len(pending)


def test_dropped_reply_leaves_nothing_behind(pending: PendingResults):
    """What nobody holds any more is forgotten."""
    (reply,) = expected(pending, "1")
    found = weakref.ref(reply)
    before = len(pending)
    del reply
    gc.collect()

    assert (1, None, 0) == (before, found(), len(pending))


def test_who_leaves_is_not_told(pending: PendingResults):
    """A watcher that has left is not called, nor is its reply looked for."""
    (reply,) = expected(pending, "1")
    pending.add_callback(reply, pytest.fail)
    has_left = pending.remove_callback(reply, pytest.fail)
    pending.poll_all()
    due = polled(pending)
    pending.deliver([("1", b"a")])

    assert (True, [], False) == (has_left, due, pending.remove_callback(reply, pytest.fail))


def test_one_of_two_can_leave(pending: PendingResults):
    """As long as somebody watches, a reply is looked for."""
    (reply,) = expected(pending, "1")
    pending.add_callback(reply, pytest.fail)
    pending.add_callback(reply, print)
    pending.remove_callback(reply, pytest.fail)
    pending.poll_all()

    assert ["1"] == polled(pending)


def test_listening_alone_costs_no_look(pending: PendingResults):
    """What is only listened for is not looked for, but told."""
    (reply,) = expected(pending, "1")
    told: list[int] = []
    pending.add_passive_callback(reply, lambda: told.append(1))
    pending.poll_all()
    due = polled(pending)
    pending.deliver([("1", b"a")])

    assert ([], [1]) == (due, told)


def test_one_broken_watcher_does_not_keep_others(
    pending: PendingResults, caplog: pytest.LogCaptureFixture
):
    """What a callback raises is logged, and the others are called."""
    (reply,) = expected(pending, "1")
    told: list[int] = []
    pending.add_callback(reply, lambda: 1 / 0)
    pending.add_callback(reply, lambda: told.append(1))
    with caplog.at_level(logging.ERROR):
        pending.deliver([("1", b"a")])

    assert [1] == told
    assert "A callback of a result has failed" in caplog.text


def test_told_replies_are_looked_for_in_time(
    pending: PendingResults, monkeypatch: pytest.MonkeyPatch
):
    """A reply that is told of is looked for only when a notification may have been missed."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    told = expected(pending, "told")[0]
    stray = pending.get("stray")
    pending.add_callback(told, print)
    pending.add_callback(stray, print)
    first = polled(pending)
    now += POLL_NOTIFIED
    second = polled(pending)

    assert (["stray"], ["stray", "told"]) == (first, second)


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


@pytest.mark.parametrize("told", [1, 2, 3])
def test_barrier_that_is_being_built_counts_all(pending: PendingResults, told: int):
    """A group hears of its last member even if members come while it is built."""
    names = ["1", "2", "3"]
    replies = expected(pending, *names)

    class Member:
        def __init__(self, reply: PendingResult) -> None:
            self.reply = reply

        def then(self, callback: barrier) -> None:
            pending.add_passive_callback(self.reply, lambda: pending.barriers.count(callback))
            if self.reply is replies[-1]:
                pending.deliver([(name, b"x") for name in names[:told]])

    done: list[int] = []
    whole = barrier([Member(reply) for reply in replies])
    whole.then(lambda: done.append(1))
    pending.deliver([(name, b"x") for name in names])
    pending.barriers.complete()
    pending.barriers.complete()

    assert [1] == done


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


def test_first_to_hear_of_a_batch_keeps_it(pending: PendingResults):
    """The facts come with the answer, or just after it was found; later ones are of another run."""
    told, found = expected(pending, "told", "found")
    pending.deliver([("found", b"1")])
    pending.deliver(
        [("told", b"1"), ("found", b"1")], batch_facts(2, 0.5, "w") + pack_waits([1, 2])
    )
    pending.deliver([("told", b"1")], batch_facts(9, 0.5, "w") + pack_waits([9]))

    assert BatchInfo(2, 1.0, 0.5, "w") == told.batch_info
    assert BatchInfo(2, 2.0, 0.5, "w") == found.batch_info


def test_what_an_older_client_does_not_know_does_it_no_harm(pending: PendingResults):
    """Whoever takes all pairs for replies knows of no task with the ids of the new ones."""
    (reply,) = expected(pending, "1")
    payload = b"".join(
        write_replies([(STARTED_ID + "1", b"started")])
        + write_replies([("1", b"a")], batch_facts(1, 0.5, "w"), [1.0])
    )
    values = {name: value for name, value in read_replies(payload) if name in pending._known}

    assert ({"1": b"a"}, None) == (values, reply.value)


def test_followers_hear_of_what_is_new(pending: PendingResults):
    """Who follows is called once, at the next state or the end, and at no state that is known."""
    reply = pending.get("1")
    heard: list[str] = []
    first = pending.add_state_callback(reply, lambda: heard.append("first"), None)
    pending.deliver([(STARTED_ID + "1", b"started")])
    again = pending.add_state_callback(reply, pytest.fail, None)
    second = pending.add_state_callback(reply, lambda: heard.append("second"), b"started")
    pending.deliver([("1", b"done")])

    assert (True, False, True) == (first, again, second)
    assert (["first", "second"], b"started", b"done") == (heard, reply.latest, reply.value)
    assert not pending.add_state_callback(reply, pytest.fail, b"started")
    assert float("inf") == pending.next_poll()


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
