"""Traces of requests: files that say when they came and what they cost."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_batch.cli.trace import load_of, record
from celery_batch.errors import ConfigurationError


def write(path, *, task="t", processes=1, count=100, cost=2.0):
    """Write a trace with a request each tenth of a second."""
    lines = [{"task": task, "processes": processes}]
    lines += [{"arrived": n / 10, "cost": cost + n, "rows": 1} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_each_process_gets_its_part(tmp_path):
    """Settings are for one process, which gets every n-th request of all."""
    load = load_of(write(tmp_path / "trace", processes=2, count=200), "t")

    assert [2.0, 4.0, 6.0] == list(load.costs[:3])
    assert pytest.approx(100 / 19.8) == load.rate


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "give a file that --record has written"),
        ("[]", "give a file that --record has written"),
        ('{"task": "t", "processes": 1}\n{"arrived": 1}', ": is no trace; give a file"),
        ('{"task": "t", "processes": 0}', "give a file that --record has written"),
        ('{"task": "other", "processes": 1}', "is of other, not of t"),
        ('{"task": "t", "processes": 1}', "has 0 requests for each process"),
    ],
    ids=["empty", "list", "field", "processes", "task", "short"],
)
def test_what_is_no_trace_is_refused(tmp_path, content, error):
    """In one line that names the file, and what to give instead."""
    path = tmp_path / "trace"
    path.write_text(content)

    with pytest.raises(ConfigurationError, match=error):
        load_of(path, "t")


def test_without_a_worker_nothing_is_recorded(tmp_path, monkeypatch):
    """The command says so at once instead of after a minute."""
    monkeypatch.setattr("celery_batch.cli.trace._TIMEOUT", 0.01)
    with (
        Celery("traced", broker="memory://", set_as_current=False) as app,
        pytest.raises(ConfigurationError, match="t: no running worker has this task"),
    ):
        record(app, "t", tmp_path / "trace", 60.0, print)

    assert not (tmp_path / "trace").exists()


def use(monkeypatch, ask):
    """Have a function of a command's arguments stand for the workers."""

    class FakeClient:
        """Stands for a control client."""

        def __init__(self, _app):
            """Connect to nothing."""

        def ask_batch_workers(self, _command, _seconds, arguments):
            """Return the answers to a look."""
            return ask(arguments)

        def ask(self, _command, _seconds, destination, arguments):
            """Return the answers to a look at those that were late."""
            assert destination == ["w"]
            return ask(arguments)

        def close(self):
            """Do nothing."""

    monkeypatch.setattr("celery_batch.cli.trace.ControlClient", FakeClient)


def test_late_replies_lose_nothing(tmp_path, monkeypatch):
    """What a worker said too late is asked for again; none is counted twice."""
    arrivals = [[1.0 + n, 5.0, 1] for n in range(6)]
    seen = []

    def ask(arguments):
        """Answer as a worker whose second reply comes too late."""
        seen.append(arguments["seen"])
        if len(seen) == 2:
            return {}
        number = (arguments["seen"] or {}).get("w", 0)
        until = 2 * len(seen) - 2
        return {"w": {"ok": {"processes": 2, "arrived": arrivals[number:until], "next": until}}}

    monkeypatch.setattr("celery_batch.cli.trace._EVERY", 0.0)
    count = 0

    def interrupt(_: str) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt

    use(monkeypatch, ask)
    recorded = record(None, "t", tmp_path / "trace", 60.0, interrupt)

    assert (6, 2) == recorded
    assert [None, {"w": 0}, {"w": 0}, {"w": 4}] == seen


def test_the_last_look_is_repeated(tmp_path, monkeypatch):
    """A worker that replies too late to it is asked again."""
    looks = []

    def ask(arguments):
        """Answer as a worker that replies to the first look and to the last."""
        looks.append(arguments["seen"])
        if 1 < len(looks) < 5:
            return {}
        arrived = [[1.0, 5.0, 1]] * (len(looks) > 1)
        return {"w": {"ok": {"processes": 1, "arrived": arrived, "next": len(arrived)}}}

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("celery_batch.cli.trace._EVERY", 0.0)
    use(monkeypatch, ask)
    recorded = record(None, "t", tmp_path / "trace", 60.0, interrupt)

    assert (1, 1) == recorded
