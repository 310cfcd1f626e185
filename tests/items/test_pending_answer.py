"""Passing each item of a batch its outcome."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, _state
from celery.exceptions import Retry

from celery_batch import ConfigurationError
from celery_batch.items.pending_answer import (
    PendingAnswer,
    RetryItem,
    pending_answer,
    retry_options,
)
from celery_batch.runtime.runner import Outcome
from tests.services.making import join, make


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own; Celery gives shared tasks to every app there will be."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())
    return Celery("shop", set_as_current=False)


def test_popped_once():
    """An answer is returned once, to the task that it was set for."""
    pending_answer = PendingAnswer()
    pending_answer.set("a", str)

    assert str is pending_answer.pop("a")
    assert pending_answer.pop("a") is None


@pytest.mark.parametrize("task_id", ["b", None])
def test_not_by_others(task_id: str | None):
    """A task that runs in between does not get it."""
    pending_answer = PendingAnswer()
    pending_answer.set("a", str)

    assert pending_answer.pop(task_id) is None
    assert str is pending_answer.pop("a")


def test_last_one_counts():
    """An answer that was not popped is replaced by the next."""
    pending_answer = PendingAnswer()
    pending_answer.set("a", str)
    pending_answer.set("b", int)

    assert pending_answer.pop("a") is None
    assert int is pending_answer.pop("b")


def test_one_per_thread():
    """On the threads pool each thread has its own."""
    pending_answer = PendingAnswer()
    pending_answer.set("a", str)

    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(pending_answer.pop, "a").result(timeout=5)

    assert elsewhere is None
    assert str is pending_answer.pop("a")


def test_run_pops_the_answer_that_was_set(app: Celery):
    """The answer is called with the row of arguments, and returns the task's outcome."""
    task = make(app, join)
    pending_answer.set("some-id", lambda row: Outcome(("answer", row)))
    result = task.apply(("a",), {"sep": "+"}, task_id="some-id")

    assert ("answer", ("a", "!", "+")) == result.get()


def test_run_of_another_task_leaves_it_alone(app: Celery):
    """A hook may call the task itself, which runs a batch of one."""
    task = make(app)
    pending_answer.set("some-id", lambda row: Outcome(("answer", row)))

    assert 42 == task(21)
    assert 42 == task.apply((21,), task_id="other-id").get()
    assert ("answer", (21,)) == task.apply((21,), task_id="some-id").get()


def test_answer_that_raises_is_the_task_s_error(app: Celery):
    """An item's error comes out of its `run`."""

    def answer(_: tuple[Any, ...]) -> Outcome:
        return Outcome(error=KeyError("this item"))

    task = make(app)
    pending_answer.set("some-id", answer)

    with pytest.raises(KeyError, match="this item"):
        task.apply((21,), task_id="some-id", throw=True)


@pytest.fixture
def task_in_batch(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A task as its own function sees it while it runs for a batch."""
    monkeypatch.setattr(pending_answer, "in_batch", True)
    return make(app, name="shop.t")


def test_retry_in_a_batch_is_a_retry_of_every_item(task_in_batch: Any):
    """It sends no message itself; its options are kept for each item's retry."""
    with pytest.raises(RetryItem) as retry:
        task_in_batch.retry(countdown=3, max_retries=1)

    assert {"countdown": 3, "max_retries": 1} == retry_options(retry.value)
    assert isinstance(task_in_batch.retry(throw=False), RetryItem)


@pytest.mark.parametrize(
    ("args", "options"), [(((1,),), {}), ((), {"args": (1,)}), ((), {"kwargs": {"x": 1}})]
)
def test_retry_in_a_batch_takes_no_new_arguments(
    task_in_batch: Any, args: tuple[Any, ...], options: dict[str, Any]
):
    """Each item is retried with its own; the message says what to leave out."""
    with pytest.raises(ConfigurationError, match=r"^shop\.t: .* leave args and kwargs out of"):
        task_in_batch.retry(*args, **options)


def test_replace_in_a_batch_is_refused(task_in_batch: Any):
    """One task cannot take the place of many requests."""
    with pytest.raises(ConfigurationError, match=r"^shop\.t: replace\(\) replaces one request"):
        task_in_batch.replace(task_in_batch.s(1))


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
