"""
Requests of one row and of many, through the model together and back apart.

Rule 1: a chunk whose rows went well has the list of its outputs.
Rule 2: a row that failed fails its chunk, with an error that names the rows and
        keeps the other outputs.
Rule 3: what concerns the whole task (to be run again, retried, out of time) is
        the chunk's as soon as it is one row's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Retry, TaskPredicate

from celery_batch.chunks import Chunk
from celery_batch.errors import ChunkFailed
from celery_batch.serving.runner import Outcome, Timing

__all__ = ["Asked", "answer_all", "ask_all", "columns_of", "fold_all", "rows_in"]

#: What one request asks the model: a row of values, or many as columns.
Asked = tuple[Any, ...] | Chunk

#: Failed rows that a message tells of, and characters of each error.
_TOLD, _LONGEST_ERROR = 3, 1000


def rows_in(asked: Sequence[Asked]) -> int:
    """Return how many rows there are altogether."""
    return sum(each.rows if isinstance(each, Chunk) else 1 for each in asked)


def columns_of(asked: Sequence[Asked]) -> list[list[Any]]:
    """Return what requests ask as the model wants it: a column for each parameter."""
    if not any(isinstance(each, Chunk) for each in asked):
        return [list(column) for column in zip(*asked, strict=True)]
    if len(asked) == 1 and isinstance(asked[0], Chunk):
        return list(asked[0].columns)
    parts = (
        each.columns if isinstance(each, Chunk) else tuple([value] for value in each)
        for each in asked
    )
    return [list(chain.from_iterable(column)) for column in zip(*parts, strict=True)]


def answer_all(
    task: Any,
    asked: Sequence[Asked],
    columns: list[list[Any]],
    timings: list[Timing] | None = None,
) -> list[Outcome]:
    """
    Run requests through a task's model, in as few calls as their rows need.

    Args:
        task: The batch task.
        asked: What each request asks, at least one.
        columns: The same, as `columns_of` lays it out.
        timings: Is given those of all calls of the model, in their order.

    Returns:
        One outcome per request, in order.
    """
    return fold_all(task, asked, ask_all(task, asked, columns, timings))


def ask_all(
    task: Any,
    asked: Sequence[Asked],
    columns: list[list[Any]],
    timings: list[Timing] | None = None,
) -> list[Any]:
    """
    Ask a task's model, and do no more: a device may be waiting for the next batch.

    Args:
        task: The batch task.
        asked: What each request asks, at least one.
        columns: The same, as `columns_of` lays it out.
        timings: Is given those of all calls of the model, in their order.

    Returns:
        For each row what the model returned, or an outcome in its place.
    """
    answers: list[Any] = task.runner().answers(*columns, alone=len(asked) == 1, timings=timings)
    return answers


def fold_all(task: Any, asked: Sequence[Asked], answers: list[Any]) -> list[Outcome]:
    """
    Make each request's outcome of its rows' answers.

    Args:
        task: The batch task.
        asked: What each request asks.
        answers: As `ask_all` returned them.

    Returns:
        One outcome per request, in order.
    """
    if not any(isinstance(each, Chunk) for each in asked):
        return [_outcome(answer) for answer in answers]
    outcomes, start = [], 0
    for each in asked:
        rows = each.rows if isinstance(each, Chunk) else 1
        part = answers[start : start + rows]
        outcomes.append(_fold(task, part) if isinstance(each, Chunk) else _outcome(part[0]))
        start += rows
    return outcomes


def _outcome(answer: Any) -> Outcome:
    return answer if isinstance(answer, Outcome) else Outcome(value=answer)


def _fold(task: Any, answers: list[Any]) -> Outcome:
    missing = {row: each for row, each in enumerate(answers) if isinstance(each, Outcome)}
    if not missing:
        return Outcome(value=answers)
    for outcome in missing.values():
        if outcome.again or isinstance(outcome.error, (Retry, SoftTimeLimitExceeded)):
            return outcome
    first = next(iter(missing.values()))
    if len(missing) == len(answers) and isinstance(first.error, TaskPredicate):
        return first
    whole = _chunk_failed(answers, missing)
    whole.__cause__ = first.error
    return _for_autoretry(task, missing, whole) or Outcome(error=whole)


def _for_autoretry(task: Any, missing: dict[int, Outcome], whole: ChunkFailed) -> Outcome | None:
    """
    Return the outcome by which Celery retries the task, if one row's error asks for that.

    Celery goes by the type of an error, so the row's is raised; once there are no more
    tries, the whole chunk's is told.
    """
    wanted = tuple(getattr(task, "autoretry_for", ()))
    unwanted = tuple(getattr(task, "dont_autoretry_for", ()))
    for outcome in missing.values():
        error = outcome.error
        if error is not None and isinstance(error, wanted) and not isinstance(error, unwanted):
            return Outcome(error=error, origin=outcome.origin, whole=whole)
    return None


def _chunk_failed(answers: list[Any], missing: dict[int, Outcome]) -> ChunkFailed:
    failures = [[row, _told(outcome.error)] for row, outcome in missing.items()]
    told = "; ".join(f"row {row}: {what}" for row, what in failures[:_TOLD])
    more = f"; and {len(failures) - _TOLD} more" if len(failures) > _TOLD else ""
    outputs = [None if row in missing else answer for row, answer in enumerate(answers)]
    return ChunkFailed(
        f"{len(failures)} of {len(answers)} rows failed: {told}{more}", failures, outputs
    )


def _told(error: Any) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (whatever a model's own error class does)
        text = "(its message cannot be shown)"
    return f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]
