"""What the workers and the broker say of themselves: sums, rates, silence and absence."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from celery import Celery

from webapp.fleet import Fleet


class Clock:
    """A clock that goes where it is set."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        """Return the time that was set."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The fleet's clock."""
    clock = Clock()
    monkeypatch.setattr("webapp.fleet.time", clock)
    return clock


@pytest.fixture
def look(clock, monkeypatch):
    """Look at workers that answer what the test says, a second later each time."""
    fleet = Fleet(Celery("fleet", broker="memory://"), ("batched", "single"))
    bus = Mock(**{"depths.return_value": {"celery": 2, "other": 1}})
    monkeypatch.setattr(fleet, "_bus", bus)

    def look(after=1.0, **answers):
        bus.ask.return_value = answers
        clock.now += after
        return fleet.look()

    return look


def lane(sizes, running=0, waiting=0):
    """Return what a worker reports of one task."""
    batches, rows = (sum(each[place] for each in sizes.values()) for place in (0, 1))
    numbers = {"batches": batches, "rows": rows, "running": running, "waiting": waiting}
    return {"warm": True, "sizes": sizes, **numbers}


def test_first_look_knows_no_rate(look):
    """What was counted before is nobody's throughput; the totals are the worker's own."""
    said = look(w={"batched": lane({"4": [2, 7]}), "single": lane({"1": [5, 5]})})
    worker = {"name": "w", "state": "ready", "waiting": 0, "batches": 7, "rows": 12}

    assert (None, {}, 3, True) == (said["rate"], said["sizes"], said["queue"], said["reached"])
    assert [worker] == said["workers"]


def test_growth_becomes_rate_and_sizes(look):
    """All workers' inputs since the last look are the throughput, and their batches the sizes."""
    look(v={"batched": lane({"4": [2, 7]})}, w={"batched": lane({"8": [1, 5]})})
    said = look(
        after=2.0,
        v={"batched": lane({"4": [4, 14], "64": [1, 60]}, running=1)},
        w={"batched": lane({"8": [1, 5]})},
    )

    assert 33.5 == said["rate"]
    assert {"4": [2, 7], "64": [1, 60]} == said["sizes"]
    assert ["busy", "ready"] == [worker["state"] for worker in said["workers"]]


def test_a_restarted_worker_counts_from_none(look):
    """Totals that have shrunk are a new worker's, and the sums of all only grow."""
    look(w={"batched": lane({"4": [9, 36]})})
    look(w={"batched": lane({"4": [10, 40]})})
    said = look(w={"batched": lane({"4": [2, 8]})})

    assert 8.0 == said["rate"]
    assert {"4": [3, 12]} == said["sizes"]


def test_who_does_not_answer_is_silent_then_forgotten(look):
    """A busy worker may miss a question; one that misses many is gone."""
    look(w={"batched": lane({})})
    silent = look()
    gone = look(after=10.0)

    assert ["silent"] == [worker["state"] for worker in silent["workers"]]
    assert [] == gone["workers"]


def test_others_workers_are_left_out(look):
    """Only who serves one of the tasks, with a warm model, is one of ours."""
    said = look(v={"other": lane({})}, w={"batched": {"warm": False}}, x={"single": {"warm": True}})

    assert ["x"] == [worker["name"] for worker in said["workers"]]


def test_a_broker_that_is_away_is_a_fact():
    """Nothing is raised and nothing is claimed."""
    app = Celery("fleet", broker="redis://127.0.0.1:1/0")
    app.conf.broker_transport_options = {"socket_connect_timeout": 0.2}
    said = Fleet(app, ("batched",)).look()

    assert (False, None, None, []) == tuple(
        said[name] for name in ("reached", "queue", "rate", "workers")
    )
