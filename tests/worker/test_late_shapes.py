"""Shapes of a task whose first message comes after the start of the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask, LoadFailed, Model
from celery_batch.runtime import registry
from celery_batch.worker.executor.loader import load_models, run_step
from tests.worker.executor.test_executor import _error, app, deliver

__all__ = ["app"]


class Shaped(Model):
    """A model with fixed shapes that remembers the shapes of its calls."""

    batch_sizes: Any = (1, 2)
    batch_lengths = (2, 4)
    calls: list[tuple[int, int]]

    def load(self, device: str) -> None:  # noqa: ARG002
        """Begin to remember."""
        self.calls = []

    @staticmethod
    def example(length: int) -> list[int]:
        """Return a row of this length."""
        return [0] * length

    def predict(self, rows: list[list[int]]) -> list[int]:
        """Sum each row."""
        self.calls.append((len(rows), max(map(len, rows))))
        return [sum(row) for row in rows]


@pytest.fixture(autouse=True)
def _unloaded() -> Iterator[None]:
    """Nothing is loaded before and after."""
    registry.unload_all()
    yield
    registry.unload_all()


def calls() -> list[tuple[int, int]]:
    """Return rows and length of each call of the model."""
    return registry.instance_of(Shaped).calls  # type: ignore[attr-defined, no-any-return]


def test_a_model_that_a_batch_loads_is_warmed_up_before_it(app: Celery):
    """Else each shape would be compiled while a request waits."""
    task = Shaped.as_task(app, name="shop.late")
    deliver(task, [1, 2])
    deliver(task, [3])

    assert [(2, 4), (2, 2), (1, 4), (1, 2)] == calls()[:4]
    assert [(1, 2), (1, 1)] == calls()[4:]


def test_a_loaded_model_is_warmed_up_for_another_task(app: Celery):
    """Which has sizes of its own; those that were there at the start have run."""
    Shaped.as_task(app, name="shop.early")
    late = Shaped.as_task(app, name="shop.late", batch_sizes=(3,))
    load_models(app, ["shop.early"])
    before = len(calls())
    deliver(late, [1, 2])

    assert [(3, 4), (3, 2), (3, 2)] == calls()[before:]


def test_new_weights_are_warmed_up_for_late_tasks(app: Celery):
    """A reload prepares what the first batch has prepared."""
    task = Shaped.as_task(app, name="shop.late")
    deliver(task, [1, 2])
    steps = [run_step(app, task.name, step) for step in ("load", "swap")]

    assert [None, None] == steps
    assert [(2, 4), (2, 2), (1, 4), (1, 2)] == calls()


def test_a_function_is_warmed_up_before_its_first_batch(app: Celery):
    """It needs no model to have shapes."""
    seen: list[int] = []

    @app.task(base=BatchTask, name="shop.late", batch_sizes=(1, 4), padding_row=0)
    def late(x):
        seen.append(len(x))
        return x

    deliver(late, 1)
    deliver(late, 1)

    assert [4, 1, 1, 1, 1] == seen


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_late_warm_up_that_fails_fails_the_batch(app: Celery, error: type[BaseException]):
    """And is tried again by the next one."""
    broken = [error("no")]

    class Broken(Shaped):
        """A model that fails once."""

        def example(self, length: int) -> list[int]:  # type: ignore[override]
            """Return a row of this length, but for the first time."""
            if broken:
                raise broken.pop()
            return [0] * length

    task = Broken.as_task(app, name="shop.late")
    (failed, einfo, _), *_ = deliver(task, [1, 2])
    (succeeded, *_), *_ = deliver(task, [1, 2], ids=["other"])

    assert (1, 0) == (failed, succeeded)
    assert isinstance(_error(einfo), LoadFailed)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_late_function_that_fails_fails_the_batch(app: Celery, error: type[BaseException]):
    """Also where no model has to be loaded."""

    def example(_length: int) -> Any:
        raise error("no")

    @app.task(
        base=BatchTask, name="shop.late", batch_sizes=(1,), batch_lengths=(4,), example=example
    )
    def late(x):
        return x

    (failed, einfo, _), *_ = deliver(late, 1)

    assert failed
    assert isinstance(_error(einfo), LoadFailed)
