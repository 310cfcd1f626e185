"""
Many rows as one Celery task.

On the wire a chunk is an ordinary message whose arguments are lists, as the batch
function itself takes them, with a header that counts the rows.  Caller and worker
both check here that the two agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from celery_batch.errors import InvalidChunk

__all__ = ["MOST_ROWS", "ROWS", "Chunk", "ChunkCalls", "chunk_of", "rows_of"]

#: The message header that says how many rows the arguments have; only chunks have it.
ROWS = "batch_rows"

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

    batch_signature: ClassVar[inspect.Signature]

    def delay_chunk(self, *columns: Iterable[Any], **named: Iterable[Any]) -> Any:
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
        return self.apply_chunk(*columns, kwargs=named)

    def apply_chunk(
        self,
        *columns: Iterable[Any],
        kwargs: Mapping[str, Iterable[Any]] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """
        Send many rows as one task, with options.

        Args:
            columns: As for `delay_chunk`.
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

    def chunk_signature(
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
            columns: As for `delay_chunk`.
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
        chunk_of(self.batch_signature, args, kwargs, rows)
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
