"""The Future API program."""

from __future__ import annotations

from examples import future_api
from tests.apps.models.shout import Shout
from workers.models.infilling import SENTENCES


def test_every_submit_is_answered(capsys):
    """Two hundred submits give two hundred lists of three answers, and a bar that fills."""
    answers = future_api.main(Shout)

    assert [[sentence.upper() for sentence in SENTENCES]] * 200 == answers
    assert "100%" in capsys.readouterr().out
