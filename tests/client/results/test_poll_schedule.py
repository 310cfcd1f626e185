"""When which pending result is polled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.client.results.pending import (
    POLL_FOLLOWED,
    POLL_NOTIFIED,
    POLL_UNNOTIFIED,
    PendingResult,
    PendingResults,
    PollSchedule,
)


def notified(number: int) -> list[PendingResult]:
    """Return some pending results that a worker notifies us of."""
    registry = PendingResults(None)
    return [registry.expect_new(str(n)) for n in range(number)]


def test_urgent_result_is_polled_once_at_once():
    """An urgent result comes before all others, and then again after its interval."""
    schedule = PollSchedule()
    first, urgent = notified(2)
    schedule.add(first, 0.1)
    schedule.add(urgent, 0.2)
    schedule.add(urgent, 0.0)

    assert [urgent] == schedule.take(now=0.5, limit=1)
    assert [first] == schedule.take(now=0.5, limit=10)
    assert 0.5 + POLL_NOTIFIED == schedule.next_due()


def test_interval_depends_on_what_is_awaited():
    """A result without notifications is polled most often, then one whose states are followed."""
    registry = PendingResults(None)
    stranger, followed = registry.get("stranger"), registry.get("followed")
    registry.add_callback(stranger, print)
    registry.add_state_callback(followed, print, None)

    assert POLL_UNNOTIFIED == stranger.poll_interval
    assert POLL_FOLLOWED == followed.poll_interval
    assert POLL_NOTIFIED == registry.expect_new("ours").poll_interval


def test_after_an_interruption_all_are_due():
    """All results can be made due at once, in their order."""
    schedule = PollSchedule()
    some = notified(3)
    for pending in some:
        schedule.add(pending, 100.0)
    schedule.make_all_due()

    assert some == schedule.take(now=0.0, limit=10)


@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "take"]), st.integers(0, 9))))
def test_each_is_polled_once_in_an_interval(steps: list[tuple[str, int]]):
    """However results come and go, none is polled too often, nor left out."""
    schedule = PollSchedule()
    some = notified(10)
    present: dict[int, float] = {}
    for step, (what, n) in enumerate(steps):
        now = step * POLL_NOTIFIED
        match what:
            case "add":
                schedule.add(some[n], now + POLL_NOTIFIED)
                present.setdefault(n, now + POLL_NOTIFIED)
            case "drop":
                schedule.discard(some[n])
                present.pop(n, None)
            case "take":
                due = {some[each] for each, time in present.items() if time <= now}
                taken = schedule.take(now, limit=10)
                for pending in taken:
                    present[some.index(pending)] = now + POLL_NOTIFIED

                assert due == set(taken)
