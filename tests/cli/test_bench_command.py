"""``celery batch bench``: its arguments and its output, for given answers."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_batch import BatchTask
from celery_batch.cli.bench import bench
from celery_batch.tuning.load_test import TIMEOUT, LoadResult, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operations" / "sizing.md"


@pytest.fixture
def app():
    """An app with tasks of one and of two parameters."""
    app = Celery("offered", broker="memory://", set_as_current=False)

    @app.task(base=BatchTask, name="one", shared=False)
    def one(x):
        return x

    @app.task(base=BatchTask, name="two", shared=False)
    def two(x, y):
        return [*zip(x, y, strict=True)]

    @app.task(base=BatchTask, name="ignored", shared=False, ignore_result=True)
    def ignored(x):
        return x

    return app


class FakeGenerator:
    """Answers each request after 10 ms, but what a test says about one of a kind."""

    def __init__(self, replace):
        self.replace, self.runs, self.timeout = replace, [], None

    def __call__(self, _task, timeout):
        """Stand for the class."""
        self.timeout = timeout
        return self

    async def run(self, times, rows):
        """Note the load."""
        self.runs.append((list(times), list(rows)))
        return [
            self.replace(number, Outcome(at, at, at + 0.01, batch_size=2))
            for number, at in enumerate(times)
        ]


@pytest.fixture
def run(app, monkeypatch):
    """Return a function that runs the command beside given answers."""

    def run(*options, replace=lambda _number, outcome: outcome):
        generator = FakeGenerator(replace)
        monkeypatch.setattr("celery_batch.cli.bench.LoadGenerator", generator)
        done = CliRunner().invoke(bench, options, obj=SimpleNamespace(app=app))
        return done, generator

    return run


def test_each_rate_has_a_line(run):
    """With its answers a second, its latencies and the size of its batches."""
    done, generator = run("one", "--rate", "10,20:40:20", "--duration", "2", "--input", "1")
    head, *lines = done.output.splitlines()

    assert done.exit_code == 0, done.output
    assert head.split() == ["rate", "answers/s", "errors", "p50", "p90", "p99", "max", "batch"]
    assert [20, 40, 80] == [len(times) for times, _ in generator.runs[1:]]
    assert ["10", "20", "40"] == [line.split()[0] for line in lines]
    assert [10, 20, 40] == pytest.approx([float(line.split()[1]) for line in lines], rel=0.02)
    assert all(line.split()[2:] == ["0", *("10", "ms") * 4, "2"] for line in lines)
    assert generator.timeout == 10


def test_errors_are_shown_by_kind(run):
    """With what the first one of each kind says; a timeout is shown as at least that."""

    def replace(number, outcome):
        if number % 2:
            return outcome._replace(error="ValueError", message=f"bad\n{number}")
        return outcome._replace(ended=outcome.due + 3, error=TIMEOUT) if number else outcome

    options = ("--rate", "10", "--duration", "1", "--timeout", "3", "--input", "1")
    done, _ = run("one", *options, replace=replace)
    _, line, *notes = done.output.splitlines()

    assert line.split()[2] == "9"
    assert line.split("ms")[0].split()[-1] != "10"
    assert "> 3 s" in line
    assert "5 ValueError: bad 1" in notes[0]
    assert "4 timeout" in notes[1]


def test_a_slow_sender_says_so(run):
    """Its latencies are not those of the workers alone."""
    late = lambda _number, outcome: outcome._replace(sent=4.0, ended=4.1)  # noqa: E731
    done, _ = run("one", "--rate", "10", "--duration", "2", "--input", "1", replace=late)

    assert "reached the broker" in done.output
    assert "send from several processes" in done.output


def test_a_timeout_is_shown_as_more_than_that(run):
    """Also where the difference of two times is less after rounding."""

    def replace(number, outcome):
        if not number:
            return outcome
        return Outcome(6.01, 6.01, 6.01 + 10, TIMEOUT)

    done, _ = run("one", "--rate", "1", "--duration", "2", "--input", "1", replace=replace)

    assert "> 10 s" in done.output.splitlines()[1]


def test_rows_that_the_task_refuses_are_left_out(app, run):
    """They would fail at once, and say nothing of latency; if all are, nothing is sent."""

    @app.task(base=BatchTask, name="short", shared=False, cost="x", max_item_cost=3)
    def short(x):
        return x

    words = ("short", "--rate", "10", "--duration", "1", "--input", '"long text"')
    done, generator = run(*words, "--input", '"ab"')

    assert 0 == done.exit_code, done.output
    assert "1 of 2 rows are too large for the task, and are left out" in done.stderr
    assert {("ab",)} == {row for _, rows in generator.runs for row in rows}

    done, generator = run(*words)

    assert 1 == done.exit_code
    assert "Error: no row fits the task: " in done.stderr
    assert "max_item_cost" in done.stderr
    assert not generator.runs


def test_a_long_json_text_is_no_file(run):
    """Though longer than a file's name may be."""
    text = json.dumps("a" * 5000)
    done, generator = run("one", "--rate", "10", "--duration", "1", "--input", text)

    assert done.exit_code == 0, done.output
    assert generator.runs[0][1] == [("a" * 5000,)]


def test_json_has_what_the_page_says(run):
    """One object with a list of the rates' results."""
    done, _ = run("one", "--rate", "5,10", "--duration", "2", "--input", "1", "--json")
    found = json.loads(done.output)
    text = PAGE.read_text()

    assert (found["task"], found["duration"], found["timeout"]) == ("one", 2.0, 10.0)
    assert [10, 20] == [each["requests"] for each in found["rates"]]
    assert {each.name for each in fields(LoadResult)} == {*found["rates"][0]}
    assert all(f"`{name}`" in text for name in [*found, *found["rates"][0]])


@pytest.mark.parametrize(
    ("task", "sources", "rows"),
    [
        ("one", ["1"], [(1,)]),
        ("one", ['"a text"', "[1, 2]"], [("a text",), ([1, 2],)]),
        ("one", ['{"x": 3, "z": 4}'], [(3,)]),
        ("two", ['{"x": 3, "y": 4}'], [(3, 4)]),
        ("one", ["rows.jsonl"], [(1,), (2,)]),
        ("one", ["rows.jsonl", "7"], [(1,), (2,), (7,)]),
    ],
)
def test_requests_draw_from_all_samples(run, tmp_path, monkeypatch, task, sources, rows):
    """From files and JSON, the first of which is tried out before the load."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    options = [word for source in sources for word in ("--input", source)]
    done, generator = run(task, "--rate", "100", "--duration", "2", *options)
    (_, tried), (_, drawn) = generator.runs

    assert done.exit_code == 0, done.output
    assert tried == rows[:1]
    assert {str(row) for row in drawn} == {str(row) for row in rows}


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("one", ("--input", "text"), "'text': is no file here, and no JSON"),
        ("two", ("--input", '{"x": 1}'), "has no field 'y'"),
        ("one", ("--input", "1", "--field", "text"), "has no field 'text'"),
        ("one", ("--input", "1", "--rate", "fast"), "'fast': write 50, or 50,100,200, or 100:500"),
        ("one", ("--input", "1", "--duration", "inf"), "inf: must be a finite number"),
        ("one", ("--input", "1", "--duration", "nan"), "nan: must be a finite number"),
        ("one", ("--input", "1", "--timeout", "inf"), "inf: must be a finite number"),
        ("one", ("--input", "1", "--rate", "1e9"), "1e+09 a second for 10 s are 10,000,000,000"),
        ("ignored", ("--input", "1"), "has ignore_result"),
        ("three", ("--input", "1"), "is no batch task of this app"),
    ],
)
def test_what_is_wrong_is_named(run, task, options, words):
    """Before anything is sent."""
    done, generator = run(task, "--rate", "10", *options)

    assert done.exit_code != 0
    assert words in done.output
    assert not generator.runs


@pytest.mark.parametrize("served", [True, False])
def test_without_an_answer_nothing_is_measured(run, monkeypatch, served):
    """The first request shows that; it is said if no worker reads the queue."""
    words = "" if served else "No worker answers for one"
    monkeypatch.setattr("celery_batch.cli.bench.unserved", lambda _task, _options: words)
    lost = lambda _number, outcome: outcome._replace(error=TIMEOUT, message="no answer")  # noqa: E731
    done, generator = run("one", "--rate", "10", "--input", "1", replace=lost)

    assert done.exit_code == 1
    assert (words or "one: the first request has failed: timeout: no answer") in done.output
    assert len(generator.runs) == 1


@pytest.mark.parametrize("kind", [TIMEOUT, "OperationalError"])
def test_a_broker_that_does_not_answer_is_named(run, kind):
    """It has not taken the first request."""
    away = lambda _number, outcome: outcome._replace(sent=None, error=kind, message="away")  # noqa: E731
    done, _ = run("one", "--rate", "10", "--input", "1", replace=away)

    assert done.exit_code == 1
    assert f"one: the broker cannot be reached: {kind}: away" in done.output


@pytest.fixture
def interrupted(run):
    """Return a function that runs the command until Ctrl-C in the second of two rates."""

    def replace(number, outcome):
        if number > 15:
            raise KeyboardInterrupt
        return outcome

    def interrupted(*more):
        options = ("--rate", "10,20", "--duration", "1", "--input", "1", *more)
        done, _ = run("one", *options, replace=replace)
        assert done.exit_code == 130
        assert "Interrupted." in done.stderr
        return done

    return interrupted


def test_an_interrupted_test_keeps_its_lines(interrupted):
    """Ctrl-C ends it with the exit code of shells."""
    assert interrupted().stdout.splitlines()[1].split()[0] == "10"


def test_an_interrupted_test_keeps_its_results(interrupted):
    """What was measured is printed as JSON."""
    done = interrupted("--json")

    assert [10] == [each["rate"] for each in json.loads(done.stdout)["rates"]]


def test_a_test_that_is_interrupted_at_once_has_no_results(run):
    """There is nothing but the end."""

    def replace(_number, _outcome):
        raise KeyboardInterrupt

    options = ("--rate", "10", "--input", "1", "--json")
    done, _ = run("one", *options, replace=replace)

    assert done.exit_code == 130
    assert json.loads(done.stdout)["rates"] == []
