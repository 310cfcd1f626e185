"""What a client is told whose answer has not come, by what is known of the workers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from webapp import readiness
from webapp.lateness import listens, why_late
from webapp.readiness import Census, Probe, Prober

TASK = "standin.answer"
WARM = Census(reached=True, warm={TASK: ("one",)})
COLD = Census(reached=True, warm={})
RESULTS = [SimpleNamespace(reply=SimpleNamespace(value=value)) for value in (b"{}", None, None)]


def asked(monkeypatch, *, seconds, reached=True, warm=False, ended=False):
    """Return a question that was asked so many seconds ago, and what has come of it."""
    now = [100.0]
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now[0])
    probe = Probe()
    if reached:
        probe.reach()
    if warm:
        probe.hear({"one": {TASK: {"warm": True}}})
    now[0] += seconds
    if ended:
        probe.end(reached=reached)
    return probe


@pytest.mark.parametrize(
    ("so_far", "earlier", "verdict"),
    [
        ({"seconds": 1.0}, None, "NoWorker"),
        ({"seconds": 1.0}, WARM, "DeadlineExceeded"),
        ({"seconds": 1.0, "ended": True}, WARM, "NoWorker"),
        ({"seconds": 1.0, "warm": True}, None, "DeadlineExceeded"),
        ({"seconds": 1.0, "warm": True}, COLD, "DeadlineExceeded"),
        ({"seconds": 1.0, "reached": False}, None, "BrokerUnreachable"),
        ({"seconds": 1.0, "reached": False}, WARM, "BrokerUnreachable"),
        ({"seconds": 0.1}, None, "DeadlineExceeded"),
        ({"seconds": 0.1}, COLD, "NoWorker"),
        ({"seconds": 0.1}, WARM, "DeadlineExceeded"),
        ({"seconds": 0.1, "reached": False}, None, "DeadlineExceeded"),
    ],
)
def test_the_verdict_needs_time_to_listen(monkeypatch, so_far, earlier, verdict):
    """Where this question had too little time, the last one counts; a worker may be slow."""
    refused = why_late(asked(monkeypatch, **so_far), earlier, TASK, RESULTS, 0.5)

    assert verdict == type(refused).__name__


def test_who_is_late_hears_how_much_is_missing(monkeypatch):
    """It is said how many answers have not come, and in which time."""
    refused = why_late(asked(monkeypatch, seconds=0.0), None, TASK, RESULTS, 0.5)

    assert "2 of 3 inputs had no answer within 0.5 s" == str(refused)


@pytest.mark.parametrize(("within", "seconds"), [(10.0, 1.0), (0.5, 0.4), (0.05, 0.04)])
def test_most_of_a_short_time_is_spent_on_listening(within, seconds):
    """However short a deadline is, there is more than a moment to hear of workers."""
    assert seconds == pytest.approx(listens(within))


def test_a_census_is_remembered_for_some_seconds(monkeypatch):
    """What the last question came to is better than nothing, and not for ever."""
    now = [100.0]
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now[0])
    prober = Prober(None)
    before = prober.remembered()
    prober._known = WARM, 100.0
    now[0] = 104.0
    then = prober.remembered()
    now[0] = 106.0

    assert [None, WARM, None] == [before, then, prober.remembered()]
