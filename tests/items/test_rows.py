"""Requests of one row and of many, through a model together and back apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry

from celery_batch import ChunkFailed
from celery_batch.items.rows import Chunk, run_calls
from celery_batch.runtime.runner import ErrorPolicy, Runner


def chunk(*rows: Any) -> Chunk:
    """Return a chunk of a function of one parameter."""
    return Chunk((list(rows),), len(rows))


def task_of(predict: Any, most: int = 4, **attributes: Any) -> Any:
    """Return a task as far as it is needed here."""
    policy = ErrorPolicy(interrupts=(SoftTimeLimitExceeded,), verdicts=(Retry, Ignore, Reject))
    runner = Runner(predict, "shop.model", policy, most=most)
    return SimpleNamespace(_item_key=None, _batch_runner=runner, **attributes)


def doubled(numbers: list[Any]) -> list[Any]:
    """Double numbers; an exception among them is its own output."""
    assert len(numbers) <= 4
    return [2 * n if isinstance(n, int) else n for n in numbers]


def test_an_error_that_cannot_be_shown_is_told_all_the_same():
    """A model's own error class may do anything."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    (outcome,) = run_calls(task_of(doubled), [chunk(Mute())])

    assert {0: "Mute: (its message cannot be shown)"} == outcome.error.failures


def test_a_long_error_is_cut():
    """A row's error does not make the chunk's beyond measure."""
    (outcome,) = run_calls(task_of(doubled), [chunk(ValueError("x" * 10_000))])

    assert 1000 == len(outcome.error.failures[0])


def test_an_error_that_is_not_to_be_retried_stands_for_nothing():
    """`dont_autoretry_for` is kept."""
    task = task_of(doubled, autoretry_for=(OSError,), dont_autoretry_for=(TimeoutError,))
    (outcome,) = run_calls(task, [chunk(TimeoutError())])

    assert outcome.whole is None
    assert ChunkFailed is type(outcome.error)


def interrupted_at(row: int) -> Any:
    """Return a model that a soft time limit interrupts at a row."""

    def predict(numbers: list[int]) -> list[int]:
        if row in numbers:
            raise SoftTimeLimitExceeded
        return numbers

    return predict


def test_an_interrupted_chunk_alone_is_told():
    """It would be interrupted again, so it is not run for ever."""
    (outcome,) = run_calls(task_of(interrupted_at(6)), [chunk(*range(12))])

    assert isinstance(outcome.error, SoftTimeLimitExceeded)


def test_a_broken_device_is_the_error_of_a_chunk_alone():
    """Among others it runs again elsewhere; alone it fails, with the outputs that there are."""

    def predict(numbers: list[int]) -> list[int]:
        if 6 in numbers:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return numbers

    (alone,) = run_calls(task_of(predict), [chunk(*range(12))])
    (together, _) = run_calls(task_of(predict), [chunk(*range(12)), (1,)])

    assert list(range(4, 12)) == list(alone.error.failures)
    assert [0, 1, 2, 3, *[None] * 8] == alone.error.outputs
    assert together.again
