"""From a record of the input to the values that a batch function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from celery_batch.backfill.rows import Row, Unreadable
from celery_batch.errors import BackfillError, InvalidRow

__all__ = ["Arguments", "some_fit"]

#: Fields that name a record, the first that is there.
_KEYS = ("id", "key")

#: Rows at the beginning of which one has to fit: else it is the command that is wrong.
_FIRST = 100

#: Values of JSON that are no records: known without a look at their ancestors.
_VALUES = frozenset((int, float, str, bool, list, type(None)))

#: What has fields; most are of the first kind.
_RECORDS = (dict, Mapping)


class Arguments:
    """
    How records become rows.

    A record with a field for each parameter gives those, and one that lacks some of them has
    a flaw; a record without any, and whatever is not one, is the value of the only parameter.

    Args:
        signature: Of the batch function.
        key: The field that names a record; ``id`` or ``key`` where there is one, unless given.
        field: The field that is the value of the only parameter.
    """

    def __init__(
        self, signature: inspect.Signature, *, key: str | None = None, field: str | None = None
    ) -> None:
        self._parameters = list(signature.parameters.values())
        first, *others = self._parameters
        self._needed = {first.name, *(one.name for one in others if one.default is one.empty)}
        self._names = {one.name for one in self._parameters}
        self._defaults = tuple(one.default for one in others)
        self._key = key
        self._field = field

    def options(self) -> dict[str, str | None]:
        """Return the options that say how records become rows."""
        return {"key": self._key, "field": self._field}

    @staticmethod
    def hint(row: Row) -> str:
        """Return what may be wrong with a row that failed, in words; "" if nothing strikes."""
        fields = [str(name) for name in row.values[0]] if row.is_whole else []
        if not fields:
            return ""
        one = next((name for name in fields if name not in _KEYS), fields[0])
        return (
            f"The record has the fields {', '.join(fields)}, and the model got all of it;"
            f" --field {one} gives it one of them."
        )

    def rows(self, records: Iterable[Any], line: Callable[[], int] = lambda: 0) -> Iterator[Row]:
        """
        Yield a row for each record, in order; one that does not fit has a flaw.

        Args:
            records: As the input has them.
            line: Tells where the last one begins, if that is in lines.
        """
        takes_values = self._field is None and len(self._needed) == 1
        for position, record in enumerate(records):
            if takes_values and type(record) in _VALUES:
                values = (record, *self._defaults)
                yield Row(position, str(position + 1), values, line=line())
            else:
                yield self._row(record, Row(position, str(position + 1), (), line=line()))

    def _row(self, record: Any, row: Row) -> Row:
        if isinstance(record, Unreadable):
            flaw = _flaw(InvalidRow(record.why))
            return row._replace(key=record.key or row.key, flaw=flaw)
        try:
            key = self._key_of(record, row)
        except InvalidRow as error:
            return row._replace(flaw=_flaw(error))
        try:
            values = self._values(record, row)
            is_whole = values[0] is record and isinstance(record, _RECORDS)
            return Row(row.position, key, values, line=row.line, is_whole=is_whole)
        except InvalidRow as error:
            return row._replace(key=key, flaw=_flaw(error))

    def _key_of(self, record: Any, row: Row) -> str:
        if not isinstance(record, _RECORDS):
            return row.key
        if self._key is not None:
            if self._key not in record:
                raise InvalidRow(f"{row.place} has no field {self._key!r} to be named by")
            return str(record[self._key])
        return next((str(record[name]) for name in _KEYS if name in record), row.key)

    def _values(self, record: Any, row: Row) -> tuple[Any, ...]:
        if self._field is not None:
            if not isinstance(record, _RECORDS) or self._field not in record:
                raise InvalidRow(f"{row.place} has no field {self._field!r}")
            record = record[self._field]
        elif isinstance(record, _RECORDS) and self._names & record.keys() >= self._needed:
            return tuple(record.get(one.name, one.default) for one in self._parameters)
        elif isinstance(record, _RECORDS) and self._names & record.keys():
            lacking = ", ".join(map(repr, sorted(self._needed - record.keys())))
            raise InvalidRow(f"{row.place} has no field {lacking}")
        if len(self._needed) > 1:
            raise InvalidRow(self._misfit(record, row))
        return (record, *self._defaults)

    def _misfit(self, record: Any, row: Row) -> str:
        wanted = ", ".join(sorted(self._needed))
        found = sorted(map(str, record)) if isinstance(record, _RECORDS) else type(record).__name__
        return f"{row.place} must have the fields {wanted}, it has {found}"


def _flaw(error: InvalidRow) -> str:
    return f"{type(error).__name__}: {error}"


def some_fit(rows: Iterator[Row]) -> Iterator[Row]:
    """
    Return the same rows, if any of the first fits; else no other would, either.

    Args:
        rows: All of an input, in order.

    Raises:
        BackfillError: None does.
    """
    first: list[Row] = []
    for row in rows:
        first.append(row)
        if not row.flaw:
            return chain(first, rows)
        if len(first) == _FIRST:
            break
    if first:
        reason = first[0].flaw.partition(": ")[2]
        others = f"; so it is with the first {len(first)} rows" if len(first) > 1 else ""
        raise BackfillError(f"no row can be asked: {reason}{others}")
    return iter(())
