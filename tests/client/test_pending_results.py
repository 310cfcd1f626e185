"""Who waits for which reply, without any server."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from vine import barrier

from celery_batch.client.results.pending import SWEEP, PendingResults, Reply
from celery_batch.protocol import (
    STARTED_ID,
    BatchInfo,
    facts_of_all,
    packed_waits,
    read_replies,
    write_replies,
)


@pytest.fixture
def pending() -> PendingResults:
    """An empty inbox."""
    return PendingResults()


def expected(pending: PendingResults, *names: str) -> list[Reply]:
    """Return replies that are to come."""
    return pending.expect([pending.reply(name) for name in names])


def test_who_watches_is_told_once(pending: PendingResults):
    """A watcher is called when its reply comes, and not again."""
    one, other = expected(pending, "1", "2")
    told: list[str] = []
    is_waiting = pending.watch(one, lambda: told.append("one")), pending.watch(other, told.clear)
    pending.deliver([("1", b"a")])
    pending.deliver([("1", b"b")])

    assert (True, True) == is_waiting
    assert (["one"], b"a", None) == (told, one.value, other.value)


def test_reply_that_is_there_needs_no_watcher(pending: PendingResults):
    """Who comes late is told so, and never called."""
    (reply,) = expected(pending, "1")
    pending.deliver([("1", b"a")])

    assert not pending.watch(reply, pytest.fail)


def test_one_task_has_one_reply(pending: PendingResults):
    """All results of one id share what is heard."""
    (reply,) = expected(pending, "1")

    assert pending.reply("1") is reply
    assert pending.reply("2") is not reply


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
    pending.watch(reply, pytest.fail)
    has_left = pending.leave(reply, pytest.fail)
    pending.look_again()
    due = pending.take(10)
    pending.deliver([("1", b"a")])

    assert (True, [], False) == (has_left, due, pending.leave(reply, pytest.fail))


def test_one_of_two_can_leave(pending: PendingResults):
    """As long as somebody watches, a reply is looked for."""
    (reply,) = expected(pending, "1")
    pending.watch(reply, pytest.fail)
    pending.watch(reply, print)
    pending.leave(reply, pytest.fail)
    pending.look_again()

    assert ["1"] == pending.take(10)


def test_listening_alone_costs_no_look(pending: PendingResults):
    """What is only listened for is not looked for, but told."""
    (reply,) = expected(pending, "1")
    told: list[int] = []
    pending.listen(reply, lambda: told.append(1))
    pending.look_again()
    due = pending.take(10)
    pending.deliver([("1", b"a")])

    assert ([], [1]) == (due, told)


def test_one_broken_watcher_does_not_keep_others(
    pending: PendingResults, caplog: pytest.LogCaptureFixture
):
    """What a callback raises is logged, and the others are called."""
    (reply,) = expected(pending, "1")
    told: list[int] = []
    pending.watch(reply, lambda: 1 / 0)
    pending.watch(reply, lambda: told.append(1))
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
    stray = pending.reply("stray")
    pending.watch(told, print)
    pending.watch(stray, print)
    first = pending.take(10)
    now += SWEEP
    second = pending.take(10)

    assert (["stray"], ["stray", "told"]) == (first, second)


def test_stale_reply_is_looked_for_at_once(
    pending: PendingResults, monkeypatch: pytest.MonkeyPatch
):
    """Who begins to wait late, or after an interruption, does not wait for a sweep first."""
    now = 100.0
    hurried: list[int] = []
    pending.hurry = lambda: hurried.append(1)
    monkeypatch.setattr("time.monotonic", lambda: now)
    late, interrupted, fresh = expected(pending, "late", "interrupted", "fresh")
    now += 0.5
    pending.expect([fresh])
    pending.look_again()
    pending.expect([fresh])
    late.since -= 10
    now += 0.1
    fresh.since = now
    for reply in (late, interrupted, fresh):
        pending.watch(reply, print)

    assert ["late", "interrupted"] == pending.take(10)
    assert 3 == len(hurried)


@pytest.mark.parametrize("told", [1, 2, 3])
def test_barrier_that_is_being_built_counts_all(pending: PendingResults, told: int):
    """A group hears of its last member even if members come while it is built."""
    names = ["1", "2", "3"]
    replies = expected(pending, *names)

    class Member:
        def __init__(self, reply: Reply) -> None:
            self.reply = reply

        def then(self, callback: barrier) -> None:
            pending.listen(self.reply, lambda: pending.barriers.count(callback))
            if self.reply is replies[-1]:
                pending.deliver([(name, b"x") for name in names[:told]])

    done: list[int] = []
    whole = barrier([Member(reply) for reply in replies])
    whole.then(lambda: done.append(1))
    pending.deliver([(name, b"x") for name in names])
    pending.close_barriers()
    pending.close_barriers()

    assert [1] == done


def test_threads_share_an_inbox(pending: PendingResults):
    """Threads that expect, watch and leave while replies come lose nothing."""
    number, threads = 2000, 8
    told: list[str] = []

    def ask(part: int) -> list[Reply]:
        kept = []
        for n in range(part, number, threads):
            (reply,) = expected(pending, str(n))
            if not pending.watch(reply, lambda n=n: told.append(str(n))):
                told.append(str(n))
            other = threading.Event()
            if pending.watch(reply, other.set):
                pending.leave(reply, other.set)
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
        [("told", b"1"), ("found", b"1")], facts_of_all(2, 0.5, "w") + packed_waits([1, 2])
    )
    pending.deliver([("told", b"1")], facts_of_all(9, 0.5, "w") + packed_waits([9]))

    assert BatchInfo(2, 1.0, 0.5, "w") == told.batch_info
    assert BatchInfo(2, 2.0, 0.5, "w") == found.batch_info


def test_what_an_older_client_does_not_know_does_it_no_harm(pending: PendingResults):
    """Whoever takes all pairs for replies knows of no task with the ids of the new ones."""
    (reply,) = expected(pending, "1")
    payload = b"".join(
        write_replies([(STARTED_ID + "1", b"started")])
        + write_replies([("1", b"a")], facts_of_all(1, 0.5, "w"), [1.0])
    )
    values = {name: value for name, value in read_replies(payload) if name in pending._known}

    assert ({"1": b"a"}, None) == (values, reply.value)


def test_followers_hear_of_what_is_new(pending: PendingResults):
    """Who follows is called once, at the next state or the end, and at no state that is known."""
    reply = pending.reply("1")
    heard: list[str] = []
    first = pending.follow(reply, lambda: heard.append("first"), None)
    pending.deliver([(STARTED_ID + "1", b"started")])
    again = pending.follow(reply, pytest.fail, None)
    second = pending.follow(reply, lambda: heard.append("second"), b"started")
    pending.deliver([("1", b"done")])

    assert (True, False, True) == (first, again, second)
    assert (["first", "second"], b"started", b"done") == (heard, reply.latest, reply.value)
    assert not pending.follow(reply, pytest.fail, b"started")
    assert float("inf") == pending.next_look()


def test_look_that_was_overtaken_takes_nothing_back(pending: PendingResults):
    """What is told while a look is on its way is newer than what the look finds."""
    reply = pending.reply("1")
    pending.follow(reply, lambda: None, None)
    before = pending.latest(pending.take(10))
    pending.deliver([(STARTED_ID + "1", b"started")])
    pending.note([("1", b"")], before)
    kept = reply.latest
    pending.note([("1", b"")], pending.latest(["1"]))

    assert (b"started", b"") == (kept, reply.latest)
