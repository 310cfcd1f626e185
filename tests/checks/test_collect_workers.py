"""What workers are asked, and how their answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from celery_batch.checks import collect
from celery_batch.checks.collect import workers_of
from celery_batch.cluster.control_client import ControlClient

POOL = {"implementation": "celery.concurrency.prefork:TaskPool", "max-concurrency": 1}
REPORT = {"served": True, "max_batch_size": 8, "max_wait": 0.01, "batches": 0}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answers of a control client without a broker, by command."""
    answers: dict[str, Any] = {
        "stats": {"ours": {"pool": POOL, "batches": {}}},
        "batch_stats": {"ours": {"tasks": {"shop.toy": REPORT}}},
    }

    class FakeClient(ControlClient):
        """Stands for a control client."""

        def __init__(self, app: Any) -> None:
            super().__init__(app, object())

        def ask(
            self,
            command: str,
            _seconds: float,
            destination: Sequence[str] | None = None,
            arguments: Any = None,  # noqa: ARG002 (a control client's)
        ) -> dict[str, Any]:
            """Answer at once."""
            found = answers[command]
            return {name: found[name] for name in destination or found if name in found}

        def close(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(collect, "ControlClient", FakeClient)
    monkeypatch.setattr(collect, "_REPLY_TIMEOUT", 0.0)
    return answers


def test_workers_that_serve_all_are_asked_no_more(answers: dict[str, Any]):
    """A worker that serves every batch task discards none, and each answer takes seconds."""
    assert "registered" not in answers
    (ours,) = workers_of(object(), {"shop.toy"})

    assert ["shop.toy"] == list(ours.tasks)
    assert (None, None) == (ours.queues, ours.knows)


def test_others_say_what_they_consume_and_know(answers: dict[str, Any]):
    """Names are read without what Celery adds to them; no answer is None."""
    answers["stats"].update(plain={"pool": POOL}, silent={"pool": POOL})
    answers["active_queues"] = {"plain": [{"name": "celery"}, {"name": "images"}]}
    answers["registered"] = {"plain": ["shop.mail [flush_every=10]", "shop.other"]}
    ours, plain, silent = workers_of(object(), {"shop.toy"})

    assert {"celery", "images"} == plain.queues
    assert {"shop.mail", "shop.other"} == plain.knows
    assert ({"shop.mail"}, frozenset()) == (plain.flushes, silent.flushes)
    assert [(None, None)] * 2 == [(each.queues, each.knows) for each in (ours, silent)]


def test_an_error_in_place_of_an_answer_is_kept(answers: dict[str, Any]):
    """A worker that answers with an error has said nothing of what it serves, and why."""
    answers["batch_stats"] = {"ours": {"error": "KeyError('max_wait')"}}
    answers["active_queues"] = answers["registered"] = {}
    (ours,) = workers_of(object(), {"shop.toy"})

    assert ({}, False, "KeyError('max_wait')") == (ours.tasks, ours.has_answered, ours.error)


def test_statistics_that_cannot_be_encoded_are_an_error(answers: dict[str, Any]):
    """Celery sends no answer then: such a worker is one that runs, all the same."""
    answers.update(stats={}, ping={"ours": {"ok": "pong"}}, active_queues={}, registered={})
    (ours,) = workers_of(object(), {"shop.toy"})

    assert not ours.has_answered
    assert "not to celery inspect stats" in ours.error


def test_only_workers_with_batch_tasks_are_asked_for_batches(answers: dict[str, Any]):
    """Any other would log the command, which it does not know, with a traceback."""
    answers["stats"].update(old={"pool": POOL})
    answers["batch_stats"].update(old={"error": "KeyError('batch_stats')"})
    answers["active_queues"] = answers["registered"] = {}
    old, ours = sorted(workers_of(object(), {"shop.toy"}), key=lambda each: each.runs_batches)

    assert ("old", "", True, False) == (old.name, old.error, old.has_answered, old.runs_batches)
    assert ["shop.toy"] == list(ours.tasks)
