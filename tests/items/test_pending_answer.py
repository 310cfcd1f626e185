"""Passing each item of a batch its outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, _state
from celery.exceptions import Retry

from celery_batch.items.pending_answer import (
    pending_answer,
    retry_options,
)
from celery_batch.runtime.runner import Outcome
from tests.services.making import make


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own; Celery gives shared tasks to every app there will be."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())
    return Celery("shop", set_as_current=False)


def test_run_of_another_task_leaves_it_alone(app: Celery):
    """A hook may call the task itself, which runs a batch of one."""
    task = make(app)
    pending_answer.set("some-id", lambda row: Outcome(("answer", row)))

    assert 42 == task(21)
    assert 42 == task.apply((21,), task_id="other-id").get()
    assert ("answer", (21,)) == task.apply((21,), task_id="some-id").get()


REASON, TOMORROW = KeyError("no"), datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (Retry(), {}),
        (Retry(exc=REASON), {"exc": REASON}),
        (Retry(exc=REASON, when=5), {"exc": REASON, "countdown": 5}),
        (Retry(when=TOMORROW), {"eta": TOMORROW}),
    ],
    ids=["nothing", "why", "why and when", "a date"],
)
def test_celery_s_own_retry_says_why_and_when(error: Retry, options: dict[str, Any]):
    """A Retry in place of an output becomes that item's own call of retry."""
    assert options == retry_options(error)
