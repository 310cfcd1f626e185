"""Where a worker leaves the way to an item's answer, for exactly one call of `run`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, _state

from celery_batch.seat import Seat, seat
from celery_batch.serving.runner import Outcome
from tests.making import join, make


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own; Celery gives shared tasks to every app there will be."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())
    return Celery("shop", set_as_current=False)


class TestSeat:
    """The worker's side leaves an answer for exactly one call of `run`."""

    def test_taken_once(self):
        """An answer is had once, by the task it was left for."""
        seat = Seat()
        seat.take("a", str)

        assert str is seat.leave("a")
        assert seat.leave("a") is None

    @pytest.mark.parametrize("task_id", ["b", None])
    def test_not_by_others(self, task_id: str | None):
        """A task that happens to run in between does not take it."""
        seat = Seat()
        seat.take("a", str)

        assert seat.leave(task_id) is None
        assert str is seat.leave("a")

    def test_last_one_counts(self):
        """An answer that nobody fetched gives way to the next."""
        seat = Seat()
        seat.take("a", str)
        seat.take("b", int)

        assert seat.leave("a") is None
        assert int is seat.leave("b")

    def test_one_per_thread(self, in_thread: Any):
        """On the threads pool each thread has its own."""
        seat = Seat()
        seat.take("a", str)

        assert in_thread(lambda: seat.leave("a")) is None
        assert str is seat.leave("a")

    def test_run_takes_the_answer_that_was_left(self, app: Celery):
        """The row of arguments goes to the answer, and what it returns is the task's result."""
        task = make(app, join)
        seat.take("some-id", lambda row: Outcome(("answer", row)))
        result = task.apply(("a",), {"sep": "+"}, task_id="some-id")

        assert ("answer", ("a", "!", "+")) == result.get()

    def test_run_of_another_task_leaves_it_alone(self, app: Celery):
        """A hook may call the task itself, and gets a batch of one."""
        task = make(app)
        seat.take("some-id", lambda row: Outcome(("answer", row)))

        assert 42 == task(21)
        assert 42 == task.apply((21,), task_id="other-id").get()
        assert ("answer", (21,)) == task.apply((21,), task_id="some-id").get()

    def test_answer_that_raises_is_the_task_s_error(self, app: Celery):
        """An item's error comes out of its `run`."""

        def answer(_: tuple[Any, ...]) -> Any:
            return Outcome(error=KeyError("this item"))

        task = make(app)
        seat.take("some-id", answer)

        with pytest.raises(KeyError, match="this item"):
            task.apply((21,), task_id="some-id", throw=True)


@pytest.fixture
def in_thread() -> Any:
    """Call a function on another thread and return what it returned."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result(timeout=5)
