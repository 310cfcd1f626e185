"""What is looked for, and when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.client.results.pending import PendingResult, PendingResults, PollQueue


def replies(number: int) -> list[PendingResult]:
    """Return some replies."""
    pending = PendingResults(None)
    return [PendingResult(pending, str(n)) for n in range(number)]


def test_oldest_is_looked_for_first():
    """What has waited longest comes first, at most so many at once."""
    turn = PollQueue(1.0)
    some = replies(5)
    for n, reply in enumerate(some):
        turn.add(reply, float(n))

    assert some[:2] == turn.take(now=3.5, limit=2)
    assert some[2:4] == turn.take(now=3.5, limit=10)
    assert [] == turn.take(now=3.5, limit=10)
    assert 4.0 == turn.next_due()


def test_nothing_is_due_where_nobody_waits():
    """An empty round never asks for a look."""
    assert math.inf == PollQueue(1.0).next_due()


def test_what_was_looked_for_comes_last():
    """After a look, a reply waits its interval behind all others, even if it waited already."""
    turn = PollQueue(1.0)
    first, second = replies(2)
    turn.add(first, 0.0)
    turn.add(second, 0.5)
    turn.put_back(first, now=0.2)

    assert [second, first] == turn.take(now=1.2, limit=10)


def test_second_waiter_does_not_put_off_the_first():
    """A reply that is due keeps its time when somebody else begins to wait for it."""
    turn = PollQueue(1.0)
    (reply,) = replies(1)
    turn.add(reply, 1.0)
    turn.add(reply, 5.0)

    assert [reply] == turn.take(now=1.0, limit=10)


def test_after_an_interruption_all_are_due():
    """All replies can be made due at once, in their order."""
    turn = PollQueue(1.0)
    some = replies(3)
    for reply in some:
        turn.add(reply, 100.0)
    turn.make_all_due()

    assert some == turn.take(now=0.0, limit=10)


@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "take"]), st.integers(0, 9))))
def test_each_is_looked_for_once_in_an_interval(steps: list[tuple[str, int]]):
    """However replies come and go, nobody is looked for too often, nor left out."""
    turn = PollQueue(1.0)
    some = replies(10)
    present: dict[int, float] = {}
    for now, (what, n) in enumerate(steps):
        match what:
            case "add":
                turn.add(some[n], now + 1.0)
                present.setdefault(n, now + 1.0)
            case "drop":
                turn.discard(some[n])
                present.pop(n, None)
            case "take":
                due = {some[each] for each, time in present.items() if time <= now}
                taken = turn.take(now, limit=10)
                for reply in taken:
                    turn.put_back(reply, now)
                    present[some.index(reply)] = now + 1.0

                assert due == set(taken)
