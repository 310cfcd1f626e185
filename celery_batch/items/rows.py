"""
Calls with many rows: how they are sent, and how their rows become one outcome.

The message of a chunk is an ordinary one. Its arguments are lists, as the batch function
takes them, and a header counts the rows. Caller and worker check here that the two agree.

Rule 1: a chunk whose rows all succeeded has the list of their outputs as its result.
Rule 2: if a row fails, its chunk fails, with an error that names the failed rows and
        keeps the other outputs.
Rule 3: if one row ends in a way that concerns the whole task (it is to run again, to be
        retried, or the time limit struck), its chunk ends so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Reject, Retry, TaskPredicate

from celery_batch.errors import ChunkFailed, InvalidChunk
from celery_batch.formatting import with_article
from celery_batch.protocol import NEEDS_ANSWER, ROWS
from celery_batch.runtime.runner import BatchRun, Outcome, as_outcome
from celery_batch.runtime.signature import call_error, with_one_value
from celery_batch.serialization.arrays import is_array

__all__ = [
    "MOST_ROWS",
    "CallRows",
    "Chunk",
    "ChunkCalls",
    "chunk_of",
    "columns_of",
    "count_rows",
    "failed_row",
    "needs_answer",
    "outcomes_of",
    "require_key",
    "row_count_header",
    "run_calls",
]

#: Far above any use, since all of it is one message and one result.
MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """The arguments of one request with many rows."""

    columns: tuple[list[Any], ...]  # one list per parameter of the function, one entry per row
    rows: int  # how many rows there are, at least 1


class ChunkCalls:
    """Send many rows as one task: what `delay` and `apply_async` are for one row."""

    name: Any
    _batch_signature: ClassVar[inspect.Signature]

    #: The parameters of which a call gets one value, not a list.
    _key_names: ClassVar[tuple[str, ...]] = ()

    def delay_rows(self, *columns: Iterable[Any], **named: Iterable[Any]) -> Any:
        """
        Send many rows as one task, called as the batch function is: with lists.

        Args:
            columns: One list per parameter, one entry per row; for a function of one
                parameter simply the rows.
            named: Lists for parameters by name.

        Returns:
            A `BatchResult`, whose value is the list of outputs, one per row, in order.

        Raises:
            InvalidChunk: There are no rows, or the lists differ in length.
            TypeError: The lists do not fit the function's parameters.
            QueueFull: There is not enough room for all rows; none was sent.
        """
        return self.apply_rows(*columns, kwargs=named)

    def apply_rows(
        self,
        *columns: Iterable[Any],
        kwargs: Mapping[str, Iterable[Any]] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Send many rows as one task, with options of Celery's `apply_async`; see `delay_rows`."""
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
        Return a chunk as a signature, for chains, groups and chords; see `apply_rows`.

        It is immutable, as of Celery's `si`: what goes before it in a chain adds no
        argument to it.
        """
        args, named, rows = self._as_message(columns, kwargs)
        options["headers"] = {**(headers or {}), ROWS: rows}
        return self.signature(args, named, options, immutable=True)  # type: ignore[attr-defined]

    def _as_message(
        self, columns: tuple[Iterable[Any], ...], named: Mapping[str, Iterable[Any]] | None
    ) -> tuple[list[list[Any]], dict[str, list[Any]], int]:
        keys = self._key_names
        names = [*self._batch_signature.parameters, *[""] * len(columns)]
        args: list[Any] = [
            column if name in keys else _rows(f"argument {n}", column)
            for n, (name, column) in enumerate(zip(names, columns, strict=False), start=1)
        ]
        kwargs: dict[str, Any] = {
            name: column if name in keys else _rows(f"argument {name}", column)
            for name, column in (named or {}).items()
        }
        arguments = [*zip(names, args, strict=False), *kwargs.items()]
        rows = next((len(column) for name, column in arguments if name not in keys), 0)
        if not 1 <= rows <= MOST_ROWS:
            raise InvalidChunk(f"a chunk has from 1 to {MOST_ROWS:,} rows, got {rows:,}")
        self._chunk_of(args, kwargs, rows)
        return args, kwargs, rows

    @classmethod
    def _chunk_of(cls, args: Any, kwargs: Any, rows: Any) -> Chunk:
        """Return the chunk that a message's arguments are; see `chunk_of`."""
        try:
            return chunk_of(cls._batch_signature, args, kwargs, rows, cls._key_names)
        except TypeError as error:
            raise call_error(cls.name, cls._batch_signature, error) from None

    @classmethod
    def _as_called(cls, columns: Sequence[Any]) -> Sequence[Any]:
        """Return lists for all parameters as the batch function takes them."""
        return with_one_value(cls._batch_signature, cls._key_names, columns)


def row_count_header(request: Any) -> Any:
    """Return the row count in the message of a task's current request; None if it is no chunk."""
    return _header(request, ROWS)


def needs_answer(request: Any) -> bool:
    """Return whether each row of a task's current request needs an answer."""
    return bool(_header(request, NEEDS_ANSWER))


def _header(request: Any, name: str) -> Any:
    value = request.get(name)  # in a worker
    return (request.headers or {}).get(name) if value is None else value  # or run eagerly


def chunk_of(
    signature: inspect.Signature,
    args: Any,
    kwargs: Any,
    rows: Any,
    key_names: Sequence[str] = (),
) -> Chunk:
    """Bind a chunk's arguments to a function's; raise `InvalidChunk` or `TypeError`."""
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= MOST_ROWS:
        raise InvalidChunk(f"a chunk has from 1 to {MOST_ROWS:,} rows, its message says {rows!r}")
    bound = signature.bind(*args, **kwargs)
    for name in key_names:
        if name in bound.arguments:
            bound.arguments[name] = [_key(name, bound.arguments[name])] * rows
    for name, column in bound.arguments.items():
        if not (isinstance(column, (list, tuple)) or (is_array(column) and column.ndim)):
            kind = with_article(type(column).__name__)
            raise InvalidChunk(f"{name}: must be a list of rows, got {kind}")
        if len(column) != rows:
            raise InvalidChunk(f"{name}: must have {rows} rows like the chunk, got {len(column)}")
    columns = [
        list(bound.arguments[name]) if name in bound.arguments else [parameter.default] * rows
        for name, parameter in signature.parameters.items()
    ]
    return Chunk(tuple(columns), rows)


def _key(name: str, value: Any) -> Any:
    """Return the one value of a parameter; refuse one that cannot be a key."""
    try:
        hash(value)
    except TypeError:
        raise InvalidChunk(
            f"{name}: takes one hashable value for all rows of a chunk, since batches are formed"
            f" by it, got {with_article(type(value).__name__)}"
        ) from None
    return value


def _rows(name: str, column: Any) -> Any:
    """Return an argument as a list or an array; refuse what has no order, or is one value."""
    is_one = isinstance(column, (str, bytes, bytearray, Mapping, set, frozenset))
    is_scalar = getattr(column, "ndim", 1) == 0
    if is_one or is_scalar or not isinstance(column, Iterable):
        kind = f"{type(column).__name__}{' without dimensions' * is_scalar}"
        raise InvalidChunk(f"{name}: must be a list of rows, got {with_article(kind)}")
    return column if is_array(column) else list(column)


#: The arguments of one request: a row of values, or a chunk of many.
CallRows = tuple[Any, ...] | Chunk

#: Failed rows that an error message contains, and characters of each row's error.
_SHOWN, _LONGEST_ERROR = 3, 1000


def count_rows(calls: Iterable[CallRows]) -> int:
    """Return how many rows requests have altogether."""
    return sum(each.rows if isinstance(each, Chunk) else 1 for each in calls)


def columns_of(calls: Sequence[CallRows]) -> list[list[Any]]:
    """Return the rows of requests as the batch function takes them: a list for each parameter."""
    if not any(isinstance(each, Chunk) for each in calls):
        return [list(column) for column in zip(*calls, strict=True)]
    if len(calls) == 1 and isinstance(calls[0], Chunk):
        return list(calls[0].columns)
    parts = (
        each.columns if isinstance(each, Chunk) else tuple([value] for value in each)
        for each in calls
    )
    return [list(chain.from_iterable(column)) for column in zip(*parts, strict=True)]


def run_calls(task: Any, calls: Sequence[CallRows]) -> list[Outcome]:
    """Run requests through a task's model; return one outcome per request, in order."""
    columns, alone = columns_of(calls), len(calls) == 1
    require_key(task, columns, alone=alone)
    return outcomes_of(task, calls, BatchRun(task._batch_runner, columns, alone=alone).call())


def require_key(task: Any, columns: list[list[Any]], *, alone: bool) -> None:
    """Raise `InvalidKey` if the only request has no key, or the only row of several."""
    # One without a key shares no batch, but with equal ones.
    if task._item_key is not None and (alone or len(columns[0]) == 1):
        task._item_key.of_rows(columns)


def outcomes_of(task: Any, calls: Sequence[CallRows], outputs: list[Any]) -> list[Outcome]:
    """Return one outcome per request, in order, from the outputs of their rows."""
    if not any(isinstance(each, Chunk) for each in calls):
        return [as_outcome(output) for output in outputs]
    outcomes, start = [], 0
    for each in calls:
        if isinstance(each, Chunk):
            outcomes.append(_chunk_outcome(task, outputs[start : start + each.rows]))
            start += each.rows
        else:
            outcomes.append(as_outcome(outputs[start]))
            start += 1
    return outcomes


def _chunk_outcome(task: Any, outputs: list[Any]) -> Outcome:
    missing = {row: each for row, each in enumerate(outputs) if isinstance(each, Outcome)}
    if not missing:
        return Outcome(value=outputs)
    for outcome in missing.values():
        if outcome.again or isinstance(outcome.error, (Retry, SoftTimeLimitExceeded)):
            return outcome
    first = next(iter(missing.values()))
    whole = _chunk_failed(outputs, missing)
    if len(missing) == len(outputs) and isinstance(first.error, TaskPredicate):
        return first._replace(whole=whole)
    whole.__cause__ = first.error
    return _for_autoretry(task, missing, whole) or Outcome(error=whole)


def failed_row(error: Exception) -> ChunkFailed:
    """Return the error of a chunk whose only row has failed with another error."""
    return _chunk_failed([None], {0: Outcome(error=error)})


def _for_autoretry(task: Any, missing: dict[int, Outcome], whole: ChunkFailed) -> Outcome | None:
    """Return the outcome by which Celery retries the task, if one row's error asks for that."""
    # Celery goes by the type of an error, so the row's is raised; at last the whole chunk's.
    wanted = tuple(getattr(task, "autoretry_for", ()))
    unwanted = tuple(getattr(task, "dont_autoretry_for", ()))
    for outcome in missing.values():
        error = outcome.error
        if error is not None and isinstance(error, wanted) and not isinstance(error, unwanted):
            return Outcome(error=error, origin=outcome.origin, whole=whole)
    return None


def _chunk_failed(outputs: list[Any], missing: dict[int, Outcome]) -> ChunkFailed:
    failures = [[row, _describe(outcome.error)] for row, outcome in missing.items()]
    shown = "; ".join(f"row {row}: {error}" for row, error in failures[:_SHOWN])
    more = f"; and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    present = [None if row in missing else output for row, output in enumerate(outputs)]
    return ChunkFailed(
        f"{len(failures)} of {len(outputs)} rows failed: {shown}{more}", failures, present
    )


def _describe(error: Any) -> str:
    try:
        text = str(error.reason if isinstance(error, Reject) else error)
    except Exception:  # noqa: BLE001 (whatever a model's own error class does)
        text = "(its message cannot be shown)"
    return f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]
