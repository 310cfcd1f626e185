"""Calls with many rows: through the model together, and back apart.

On the wire a chunk is an ordinary message whose arguments are lists, as the batch
function itself takes them, with a header that counts the rows.  Caller and worker
both check here that the two agree.

Rule 1: a chunk whose rows went well has the list of its outputs.
Rule 2: a row that failed fails its chunk, with an error that names the rows and
        keeps the other outputs.
Rule 3: what concerns the whole task (to be run again, retried, out of time) is
        the chunk's as soon as it is one row's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Retry, TaskPredicate

from celery_batch.errors import ChunkFailed, InvalidChunk
from celery_batch.protocol import ROWS
from celery_batch.runtime.runner import Outcome, Timing

__all__ = [
    "MOST_ROWS",
    "Asked",
    "Chunk",
    "ChunkCalls",
    "answer_all",
    "ask_all",
    "chunk_of",
    "columns_of",
    "fold_all",
    "rows_in",
    "rows_of",
]


#: Far above any use, since all of it is one message and one result.
MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    What the model is asked by one request of many rows.

    Args:
        columns: One list per parameter of the function, one entry per row.
        rows: How many rows there are, at least 1.
    """

    columns: tuple[list[Any], ...]
    rows: int


class ChunkCalls:
    """Send many rows as one task: what `delay` and `apply_async` are for one row."""

    _batch_signature: ClassVar[inspect.Signature]

    def delay_rows(self, *columns: Iterable[Any], **named: Iterable[Any]) -> Any:
        """
        Send many rows as one task, called as the batch function is: with lists.

        Args:
            columns: One list per parameter, one entry per row; for a function of one
                parameter simply the rows.
            named: Lists for parameters by name.

        Returns:
            A result, whose value is the list of outputs, one per row, in order.

        Raises:
            InvalidChunk: There are no rows, or the lists differ in length.
            TypeError: The lists do not fit the function's parameters.
        """
        return self.apply_rows(*columns, kwargs=named)

    def apply_rows(
        self,
        *columns: Iterable[Any],
        kwargs: Mapping[str, Iterable[Any]] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """
        Send many rows as one task, with options.

        Args:
            columns: As for `delay_rows`.
            kwargs: Lists for parameters by name.
            headers: Of the message.
            options: Of Celery's `apply_async`.

        Raises:
            InvalidChunk: There are no rows, or the lists differ in length.
            TypeError: The lists do not fit the function's parameters.
        """
        args, named, rows = self._as_message(columns, kwargs)
        headers = {**(headers or {}), ROWS: rows}
        return self.apply_async(args, named, headers=headers, **options)  # type: ignore[attr-defined]

    def rows_signature(
        self,
        *columns: Iterable[Any],
        kwargs: Mapping[str, Iterable[Any]] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """
        Return a chunk as a signature, for chains, groups and chords.

        It is immutable, as of Celery's `si`: what goes before it in a chain adds no
        argument to it.

        Args:
            columns: As for `delay_rows`.
            kwargs: Lists for parameters by name.
            headers: Of the message.
            options: Of Celery's `apply_async`.

        Raises:
            InvalidChunk: There are no rows, or the lists differ in length.
            TypeError: The lists do not fit the function's parameters.
        """
        args, named, rows = self._as_message(columns, kwargs)
        options["headers"] = {**(headers or {}), ROWS: rows}
        return self.signature(args, named, options, immutable=True)  # type: ignore[attr-defined]

    def _as_message(
        self, columns: tuple[Iterable[Any], ...], named: Mapping[str, Iterable[Any]] | None
    ) -> tuple[list[list[Any]], dict[str, list[Any]], int]:
        args = [_rows(f"argument {n}", column) for n, column in enumerate(columns, start=1)]
        kwargs = {name: _rows(f"argument {name}", column) for name, column in (named or {}).items()}
        lists = [*args, *kwargs.values()]
        rows = len(lists[0]) if lists else 0
        if not 1 <= rows <= MOST_ROWS:
            raise InvalidChunk(f"a chunk has from 1 to {MOST_ROWS:,} rows, got {rows:,}")
        chunk_of(self._batch_signature, args, kwargs, rows)
        return args, kwargs, rows


def rows_of(request: Any) -> Any:
    """
    Return what a running task's message says of its rows; None if it is no chunk.

    Args:
        request: The task's current one, in a worker or run in place.
    """
    said = request.get(ROWS)
    return (request.headers or {}).get(ROWS) if said is None else said


def chunk_of(signature: inspect.Signature, args: Any, kwargs: Any, rows: Any) -> Chunk:
    """
    Line a chunk's arguments up with the function's parameters.

    Args:
        signature: Of the batch function.
        args: Lists, one entry per row.
        kwargs: Lists by name.
        rows: How many rows there have to be, as the message says.

    Raises:
        InvalidChunk: An argument is no list of so many rows.
        TypeError: The arguments do not fit the function's parameters.
    """
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= MOST_ROWS:
        raise InvalidChunk(f"a chunk has from 1 to {MOST_ROWS:,} rows, its message says {rows!r}")
    bound = signature.bind(*args, **kwargs)
    for name, column in bound.arguments.items():
        if not isinstance(column, (list, tuple)):
            raise InvalidChunk(f"{name}: must be a list of rows, got a {type(column).__name__}")
        if len(column) != rows:
            raise InvalidChunk(f"{name}: must have {rows} rows like the chunk, got {len(column)}")
    columns = [
        list(bound.arguments[name]) if name in bound.arguments else [parameter.default] * rows
        for name, parameter in signature.parameters.items()
    ]
    return Chunk(tuple(columns), rows)


def _rows(name: str, column: Any) -> list[Any]:
    """Return a column as a list; what has no order, or is one value, is none."""
    is_one = isinstance(column, (str, bytes, bytearray, Mapping, set, frozenset))
    if is_one or not isinstance(column, Iterable):
        raise InvalidChunk(f"{name}: must be a list of rows, got a {type(column).__name__}")
    return list(column)


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
    answers: list[Any] = task._batch_runner().answers(
        *columns, alone=len(asked) == 1, timings=timings
    )
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
