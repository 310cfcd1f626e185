"""Who waits for which reply, without any server."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from vine import barrier

from celery_batch.client.inbox import Inbox
from celery_batch.client.looks import SWEEP
from celery_batch.client.reply import Reply
from celery_batch.replies import (
    STARTED_ID,
    BatchFacts,
    facts_of_all,
    packed_waits,
    read_replies,
    write_replies,
)


@pytest.fixture
def inbox() -> Inbox:
    """An empty inbox."""
    return Inbox()


def expected(inbox: Inbox, *names: str) -> list[Reply]:
    """Return replies that are to come."""
    return inbox.expect([inbox.reply(name) for name in names])


def test_who_watches_is_told_once(inbox: Inbox):
    """A watcher is called when its reply comes, and not again."""
    one, other = expected(inbox, "1", "2")
    told: list[str] = []
    is_waiting = inbox.watch(one, lambda: told.append("one")), inbox.watch(other, told.clear)
    inbox.deliver([("1", b"a")])
    inbox.deliver([("1", b"b")])

    assert (True, True) == is_waiting
    assert (["one"], b"a", None) == (told, one.value, other.value)


def test_reply_that_is_there_needs_no_watcher(inbox: Inbox):
    """Who comes late is told so, and never called."""
    (reply,) = expected(inbox, "1")
    inbox.deliver([("1", b"a")])

    assert not inbox.watch(reply, pytest.fail)


def test_one_task_has_one_reply(inbox: Inbox):
    """All results of one id share what is heard."""
    (reply,) = expected(inbox, "1")

    assert inbox.reply("1") is reply
    assert inbox.reply("2") is not reply


def test_id_that_is_used_again_has_a_new_reply(inbox: Inbox):
    """A task that is sent again under its id does not have the earlier answer."""
    (first,) = expected(inbox, "1")
    inbox.deliver([("1", b"a")])
    (second,) = expected(inbox, "1")
    inbox.deliver([("1", b"b")])

    assert [b"a", b"b"] == [first.value, second.value]


def test_what_nobody_asked_is_ignored(inbox: Inbox):
    """A reply to an id that nobody holds leaves nothing behind."""
    inbox.deliver([("1", b"a")])

    assert 0 == len(inbox)


def test_dropped_reply_leaves_nothing_behind(inbox: Inbox):
    """What nobody holds any more is forgotten."""
    (reply,) = expected(inbox, "1")
    found = weakref.ref(reply)
    before = len(inbox)
    del reply
    gc.collect()

    assert (1, None, 0) == (before, found(), len(inbox))


def test_who_leaves_is_not_told(inbox: Inbox):
    """A watcher that has left is not called, nor is its reply looked for."""
    (reply,) = expected(inbox, "1")
    inbox.watch(reply, pytest.fail)
    has_left = inbox.leave(reply, pytest.fail)
    inbox.look_again()
    due = inbox.take(10)
    inbox.deliver([("1", b"a")])

    assert (True, [], False) == (has_left, due, inbox.leave(reply, pytest.fail))


def test_one_of_two_can_leave(inbox: Inbox):
    """As long as somebody watches, a reply is looked for."""
    (reply,) = expected(inbox, "1")
    inbox.watch(reply, pytest.fail)
    inbox.watch(reply, print)
    inbox.leave(reply, pytest.fail)
    inbox.look_again()

    assert ["1"] == inbox.take(10)


def test_listening_alone_costs_no_look(inbox: Inbox):
    """What is only listened for is not looked for, but told."""
    (reply,) = expected(inbox, "1")
    told: list[int] = []
    inbox.listen(reply, lambda: told.append(1))
    inbox.look_again()
    due = inbox.take(10)
    inbox.deliver([("1", b"a")])

    assert ([], [1]) == (due, told)


def test_one_broken_watcher_does_not_keep_others(inbox: Inbox, caplog: pytest.LogCaptureFixture):
    """What a callback raises is logged, and the others are called."""
    (reply,) = expected(inbox, "1")
    told: list[int] = []
    inbox.watch(reply, lambda: 1 / 0)
    inbox.watch(reply, lambda: told.append(1))
    with caplog.at_level(logging.ERROR):
        inbox.deliver([("1", b"a")])

    assert [1] == told
    assert "A callback of a result has failed" in caplog.text


def test_told_replies_are_looked_for_in_time(inbox: Inbox, monkeypatch: pytest.MonkeyPatch):
    """A reply that is told of is looked for only when a notification may have been missed."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    told = expected(inbox, "told")[0]
    stray = inbox.reply("stray")
    inbox.watch(told, print)
    inbox.watch(stray, print)
    first = inbox.take(10)
    now += SWEEP
    second = inbox.take(10)

    assert (["stray"], ["stray", "told"]) == (first, second)


def test_stale_reply_is_looked_for_at_once(inbox: Inbox, monkeypatch: pytest.MonkeyPatch):
    """Who begins to wait late, or after an interruption, does not wait for a sweep first."""
    now = 100.0
    hurried: list[int] = []
    inbox.hurry = lambda: hurried.append(1)
    monkeypatch.setattr("time.monotonic", lambda: now)
    late, interrupted, fresh = expected(inbox, "late", "interrupted", "fresh")
    now += 0.5
    inbox.expect([fresh])
    inbox.look_again()
    inbox.expect([fresh])
    late.since -= 10
    now += 0.1
    fresh.since = now
    for reply in (late, interrupted, fresh):
        inbox.watch(reply, print)

    assert ["late", "interrupted"] == inbox.take(10)
    assert 3 == len(hurried)


@pytest.mark.parametrize("told", [1, 2, 3])
def test_barrier_that_is_being_built_counts_all(inbox: Inbox, told: int):
    """A group hears of its last member even if members come while it is built."""
    names = ["1", "2", "3"]
    replies = expected(inbox, *names)

    class Member:
        def __init__(self, reply: Reply) -> None:
            self.reply = reply

        def then(self, callback: barrier) -> None:
            inbox.listen(self.reply, lambda: inbox.barriers.count(callback))
            if self.reply is replies[-1]:
                inbox.deliver([(name, b"x") for name in names[:told]])

    done: list[int] = []
    whole = barrier([Member(reply) for reply in replies])
    whole.then(lambda: done.append(1))
    inbox.deliver([(name, b"x") for name in names])
    inbox.close_barriers()
    inbox.close_barriers()

    assert [1] == done


def test_threads_share_an_inbox(inbox: Inbox):
    """Threads that expect, watch and leave while replies come lose nothing."""
    number, threads = 2000, 8
    told: list[str] = []

    def ask(part: int) -> list[Reply]:
        kept = []
        for n in range(part, number, threads):
            (reply,) = expected(inbox, str(n))
            if not inbox.watch(reply, lambda n=n: told.append(str(n))):
                told.append(str(n))
            other = threading.Event()
            if inbox.watch(reply, other.set):
                inbox.leave(reply, other.set)
            kept.append(reply)
        return kept

    with ThreadPoolExecutor(threads) as pool:
        asking = [pool.submit(ask, part) for part in range(threads)]
        while not all(future.done() for future in asking):
            inbox.deliver([(str(n), b"x") for n in range(number)])
        kept = [future.result() for future in asking]
    inbox.deliver([(str(n), b"x") for n in range(number)])

    assert sorted(map(str, range(number))) == sorted(told)
    assert {b"x"} == {reply.value for part in kept for reply in part}


def test_first_to_hear_of_a_batch_keeps_it(inbox: Inbox):
    """The facts come with the answer, or just after it was found; later ones are of another run."""
    told, found = expected(inbox, "told", "found")
    inbox.deliver([("found", b"1")])
    inbox.deliver(
        [("told", b"1"), ("found", b"1")], facts_of_all(2, 0.5, "w") + packed_waits([1, 2])
    )
    inbox.deliver([("told", b"1")], facts_of_all(9, 0.5, "w") + packed_waits([9]))

    assert BatchFacts(2, 1.0, 0.5, "w") == told.batch
    assert BatchFacts(2, 2.0, 0.5, "w") == found.batch


def test_what_an_older_client_does_not_know_does_it_no_harm(inbox: Inbox):
    """Whoever takes all pairs for replies knows of no task with the ids of the new ones."""
    (reply,) = expected(inbox, "1")
    payload = b"".join(
        write_replies([(STARTED_ID + "1", b"started")])
        + write_replies([("1", b"a")], facts_of_all(1, 0.5, "w"), [1.0])
    )
    values = {name: value for name, value in read_replies(payload) if name in inbox._known}

    assert ({"1": b"a"}, None) == (values, reply.value)


def test_followers_hear_of_what_is_new(inbox: Inbox):
    """Who follows is called once, at the next state or the end, and at no state that is known."""
    reply = inbox.reply("1")
    heard: list[str] = []
    first = inbox.follow(reply, lambda: heard.append("first"), None)
    inbox.deliver([(STARTED_ID + "1", b"started")])
    again = inbox.follow(reply, pytest.fail, None)
    second = inbox.follow(reply, lambda: heard.append("second"), b"started")
    inbox.deliver([("1", b"done")])

    assert (True, False, True) == (first, again, second)
    assert (["first", "second"], b"started", b"done") == (heard, reply.latest, reply.value)
    assert not inbox.follow(reply, pytest.fail, b"started")
    assert float("inf") == inbox.next_look()


def test_look_that_was_overtaken_takes_nothing_back(inbox: Inbox):
    """What is told while a look is on its way is newer than what the look finds."""
    reply = inbox.reply("1")
    inbox.follow(reply, lambda: None, None)
    before = inbox.latest(inbox.take(10))
    inbox.deliver([(STARTED_ID + "1", b"started")])
    inbox.note([("1", b"")], before)
    kept = reply.latest
    inbox.note([("1", b"")], inbox.latest(["1"]))

    assert (b"started", b"") == (kept, reply.latest)
