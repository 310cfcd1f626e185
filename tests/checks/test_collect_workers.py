"""What is asked of workers, and what is made of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch.checks import collect_workers
from celery_batch.checks.collect_workers import workers_of

POOL = {"implementation": "celery.concurrency.prefork:TaskPool", "max-concurrency": 1}
TOLD = {"served": True, "max_batch_size": 8, "max_wait": 0.01, "batches": 0}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a control bus without a broker answers, by the question."""
    answers: dict[str, Any] = {
        "stats": {"ours": {"pool": POOL, "batches": {}}},
        "batch_stats": {"ours": {"tasks": {"shop.toy": TOLD}}},
    }

    class Bus:
        """Has its answers ready."""

        def __init__(self, app: Any) -> None:
            assert app is not None

        def ask(self, command: str, _seconds: float) -> dict[str, Any]:
            """Answer at once."""
            return answers[command]

        def close(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(collect_workers, "ControlClient", Bus)
    return answers


def test_workers_that_serve_all_are_asked_no_more(answers: dict[str, Any]):
    """Whoever serves every batch task discards none; the bus is slow to listen to."""
    assert "registered" not in answers
    (ours,) = workers_of(object(), {"shop.toy"})

    assert ["shop.toy"] == list(ours.task_stats)
    assert (None, None) == (ours.queues, ours.knows)


def test_others_say_what_they_consume_and_know(answers: dict[str, Any]):
    """A plain worker's words are read without what Celery adds to them; silence is no answer."""
    answers["stats"].update(plain={"pool": POOL}, silent={"pool": POOL})
    answers["active_queues"] = {"plain": [{"name": "celery"}, {"name": "images"}]}
    answers["registered"] = {"plain": ["shop.mail [rate_limit=1/s]", "shop.other"]}
    ours, plain, silent = workers_of(object(), {"shop.toy"})

    assert {"celery", "images"} == plain.queues
    assert {"shop.mail", "shop.other"} == plain.knows
    assert [(None, None)] * 2 == [(each.queues, each.knows) for each in (ours, silent)]


def test_an_error_in_place_of_an_answer_is_kept(answers: dict[str, Any]):
    """A worker that answers with an error has said nothing of what it serves, and why."""
    answers["batch_stats"] = {"ours": {"error": "KeyError('max_wait')"}}
    answers["active_queues"] = answers["registered"] = {}
    (ours,) = workers_of(object(), {"shop.toy"})

    assert ({}, False, "KeyError('max_wait')") == (ours.task_stats, ours.has_told, ours.error)
