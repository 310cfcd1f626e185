"""``celery batch top``: how it ends."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_batch.cli.top import top


@pytest.fixture
def interrupted(monkeypatch):
    """Return a function that runs the command until Ctrl-C while workers are asked."""

    def ask(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("celery_batch.cli.top._Observer.ask", ask)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def interrupted(*options):
        app = Celery("watched", broker="memory://", set_as_current=False)
        return CliRunner().invoke(top, options, obj=SimpleNamespace(app=app))

    return interrupted


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_a_script_sees_that_it_was_interrupted(interrupted, option):
    """It has printed nothing, and does not end with 0."""
    done = interrupted(option)

    assert done.exit_code == 130
    assert not done.stdout


def test_a_person_ends_it_with_ctrl_c(interrupted):
    """That is its usual end."""
    assert interrupted().exit_code == 0
