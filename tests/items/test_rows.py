"""Requests of one row and of many, through a model together and back apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry
from hypothesis import given
from hypothesis import strategies as st

from celery_batch import ChunkFailed
from celery_batch.items.rows import Chunk, count_rows, run_calls
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


@given(st.lists(st.integers() | st.lists(st.integers(), min_size=1), min_size=1), st.integers(1, 9))
def test_every_request_has_its_own_outputs(asked: list[Any], most: int):
    """Each request gets the outputs of its own rows, in as few model calls as possible."""
    sizes = []

    def predict(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [2 * n for n in numbers]

    requests = [chunk(*each) if isinstance(each, list) else (each,) for each in asked]
    outcomes = run_calls(task_of(predict, most), requests)
    rows = sum(len(each) if isinstance(each, list) else 1 for each in asked)

    assert [[2 * n for n in each] if isinstance(each, list) else 2 * each for each in asked] == [
        outcome.unwrap() for outcome in outcomes
    ]
    assert rows == count_rows(requests) == sum(sizes)
    assert -(-rows // most) == len(sizes)
    assert max(sizes) <= most


def test_failed_rows_are_told_by_number():
    """The first few are in the message, all of them are in the error."""
    errors = [ValueError(f"no {n}") for n in range(5)]
    (outcome, other) = run_calls(task_of(doubled), [chunk(7, *errors), (1,)])
    failed = outcome.error

    assert isinstance(failed, ChunkFailed)
    assert {n + 1: f"ValueError: no {n}" for n in range(5)} == failed.failures
    assert [14, *[None] * 5] == failed.outputs
    assert (
        "5 of 6 rows failed: row 1: ValueError: no 0; row 2: ValueError: no 1;"
        " row 3: ValueError: no 2; and 2 more" == str(failed)
    )
    assert errors[0] is failed.__cause__
    assert 2 == other.value


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


@pytest.mark.parametrize(
    "error", [Retry("later"), SoftTimeLimitExceeded()], ids=["retry", "soft limit"]
)
def test_what_concerns_the_task_is_the_chunks(error: Exception):
    """One row is enough."""
    (outcome,) = run_calls(task_of(doubled), [chunk(1, ValueError("no"), error)])

    assert error is outcome.error


@pytest.mark.parametrize("error", [Ignore(), Reject("no")], ids=["ignore", "reject"])
def test_what_all_rows_say_is_said_of_the_chunk(error: Exception):
    """If only some rows do, these have failed, and the caller gets an error."""
    task = task_of(doubled)
    (all_say_so,) = run_calls(task, [chunk(error, error)])
    (one_says_so,) = run_calls(task, [chunk(1, error)])

    assert error is all_say_so.error
    assert [1] == list(one_says_so.error.failures)


def test_an_error_to_be_retried_stands_for_its_chunk():
    """Celery sees the type it knows; beside it is the error of all rows, of each chunk its own."""
    task = task_of(doubled, autoretry_for=(OSError,), dont_autoretry_for=(TimeoutError,))
    again = ConnectionError("busy")
    mixed = chunk(1, ValueError("no"), TimeoutError(), again)
    (first, second) = run_calls(task, [mixed, chunk(again)])

    assert again is first.error is second.error
    assert [1, 2, 3] == list(first.whole.failures)
    assert [0] == list(second.whole.failures)


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


def test_an_interrupted_chunk_runs_again_with_none_of_its_rows_answered():
    """Among others the slow row is unknown: outputs that there are count, the chunk runs again."""
    asked = [(1,), chunk(2, 3, 4, 5, 6, 7, 8, 9), (10,)]
    outcomes = run_calls(task_of(interrupted_at(6)), asked)

    assert [False, True, True] == [outcome.again for outcome in outcomes]
    assert 1 == outcomes[0].value


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
