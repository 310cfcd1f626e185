"""``celery batch check``: its output and its exit code, for given findings."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_batch.checks.finding import ok, problem, warning
from celery_batch.cli.check import check
from celery_batch.cli.main import batch

FINE = ("broker", ok("It answers."))
COSTLY = ("redis-persistence", warning("Nothing is kept.", "Keep it."))
BROKEN = ("redis-eviction", problem("Messages vanish.", "Keep them."))


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the command with given findings."""

    def run(found, *options):
        monkeypatch.setattr("celery_batch.cli.check.collect", lambda app: app)
        monkeypatch.setattr("celery_batch.cli.check.checkup", lambda _facts: iter(found))
        return CliRunner().invoke(check, options, obj=SimpleNamespace(app="app"))

    return run


@pytest.mark.parametrize(
    ("found", "options", "code"),
    [
        ([FINE], (), 0),
        ([FINE, COSTLY], (), 0),
        ([FINE, COSTLY, BROKEN], (), 1),
        ([FINE, COSTLY, BROKEN], ("--fail-level", "problem"), 1),
        ([FINE, COSTLY], ("--fail-level", "problem"), 0),
        ([FINE, COSTLY], ("--fail-level", "warning"), 1),
        ([BROKEN], ("--fail-level", "warning"), 1),
        ([FINE], ("--fail-level", "warning"), 0),
    ],
)
def test_the_level_decides_the_exit_code(run, found, options, code):
    """A problem fails the command, and a warning does where that is asked for."""
    assert code == run(found, *options).exit_code
    assert code == run(found, *options, "--json").exit_code


def test_each_finding_has_the_id_of_its_check(run):
    """For a person and for a script."""
    found = [FINE, COSTLY, BROKEN]
    lines = run(found).output.splitlines()

    assert [each["id"] for each in json.loads(run(found, "--json").output)] == [
        check_id for check_id, _ in found
    ]
    assert "ok       broker: It answers." == lines[0]
    assert "warning  redis-persistence: Nothing is kept." == lines[1]
    assert "         -> Keep it." == lines[2]
    assert "1 problem, 1 warning, 1 ok" == lines[-1]


@pytest.mark.parametrize(
    ("no_color", "env", "coloured"),
    [(False, None, True), (True, None, False), (False, "1", False), (False, "", True)],
    ids=["usual", "--no-color", "NO_COLOR", "NO_COLOR is empty"],
)
def test_colours_can_be_turned_off(monkeypatch, no_color, env, coloured):
    """By Celery's own option, and by the variable that many programs know."""
    monkeypatch.setattr("celery_batch.cli.check.collect", lambda app: app)
    monkeypatch.setattr("celery_batch.cli.check.checkup", lambda _facts: iter([BROKEN]))
    obj = SimpleNamespace(app=Celery(set_as_current=False), no_color=no_color)
    done = CliRunner(env={"NO_COLOR": env}).invoke(batch, ["check"], obj=obj, color=True)

    assert coloured == ("\x1b[31mproblem" in done.output)
    assert "problem" in done.output
