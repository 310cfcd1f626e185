"""Reads rows: JSON lines, CSV, Parquet, a folder of files, standard input.

Rule 1: a record that cannot be read is one `Unreadable`, and the next one follows.
Rule 2: where it cannot be told where the next one begins, reading ends with an error.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from celery_batch.backfill.window import Row, Unreadable
from celery_batch.errors import BackfillError, InvalidRow

__all__ = [
    "FORMATS",
    "GZIP",
    "STDIN",
    "Arguments",
    "Input",
    "Source",
    "files",
    "json_lines",
    "listing",
    "need_arrow",
    "opened_parquet",
    "parquet_records",
    "some_fit",
    "tables",
]


#: Rows and bytes of a Parquet file that are in memory at once.
_PARQUET_ROWS = 4096


_PARQUET_BYTES = 8 << 20


#: Characters of a field of CSV, in place of the 131,072 that the library allows.
_LARGEST_FIELD = 2**31 - 1


#: How files begin that gzip has made.
GZIP = b"\x1f\x8b"


#: How files begin that spreadsheets and some shells write.
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Source:
    """
    Where bytes come from.

    Args:
        path: A file or folder; a name for what has none.
        lines: The lines of what has no path.
        at: The line where the last record begins, told by who reads it.
    """

    path: str
    lines: Iterable[bytes] | None = None
    at: list[int] = field(default_factory=lambda: [0])

    @contextmanager
    def opened(self) -> Iterator[Iterable[bytes]]:
        """Open it and give its lines."""
        if self.lines is not None:
            yield self.lines
            return
        with Path(self.path).open("rb") as file:
            yield file


def json_lines(source: Source) -> Iterator[Any]:
    """Yield the value of each line that is not blank."""
    with source.opened() as lines:
        for number, line in enumerate(lines, start=1):
            source.at[0] = number
            text = _begun(source, line) if number == 1 else line
            if text.isspace() or not text:
                continue
            try:
                yield json.loads(text.decode().strip())
            except json.JSONDecodeError as error:
                yield Unreadable(f"line {number} is not JSON: {error.msg} column {error.colno}")
            except (ValueError, RecursionError) as error:
                yield Unreadable(f"line {number} is not JSON: {error}")


def tables(source: Source) -> Iterator[Any]:
    """Yield the records of CSV, by the names in its first line."""
    csv.field_size_limit(_LARGEST_FIELD)
    with source.opened() as lines:
        # A field that is no UTF-8 is found out when its record is whole.
        texts = (
            (line if number else _begun(source, line)).decode(errors="surrogateescape")
            for number, line in enumerate(lines)
        )
        reader = csv.reader(texts, strict=True)
        names = _names(source, reader)
        if names:
            yield from _records(source, reader, names)


def _names(source: Source, reader: Any) -> list[str]:
    try:
        names: list[str] = next(reader, [])
    except csv.Error as error:
        raise BackfillError(f"{source.path}: line 1: {error}") from None
    if twice := {name for name in names if names.count(name) > 1}:
        raise BackfillError(f"{source.path}: line 1 names {', '.join(sorted(twice))} twice")
    return names


def _records(source: Source, reader: Any, names: list[str]) -> Iterator[Any]:
    while True:
        source.at[0] = first = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                found = f"{source.path}: line {first} has a quote that nothing closes"
                raise BackfillError(f"{found}; mend it, and begin anew with --restart") from None
            yield Unreadable(f"line {first}: {error}")
            continue
        if fields:
            yield _record(names, fields, first)


def _record(names: list[str], fields: list[str], line: int) -> Any:
    if len(fields) != len(names):
        return Unreadable(f"line {line} has {len(fields)} fields, the first line {len(names)}")
    try:
        for each in fields:
            each.encode()
    except UnicodeError:
        return Unreadable(f"line {line} is not UTF-8")
    return dict(zip(names, fields, strict=True))


def parquet_records(source: Source) -> Iterator[Any]:
    """Yield the records of a Parquet file."""
    file = opened_parquet(source.path)
    row = 0
    try:
        for batch in file.iter_batches(batch_size=_at_once(file.metadata)):
            for record in _values(batch):
                row += 1
                if isinstance(record, Exception):
                    yield Unreadable(f"row {row} has a value that Python has not: {record}")
                else:
                    yield record
    except _arrow().ArrowException as error:
        raise BackfillError(f"{source.path}: cannot be read after row {row}: {error}") from None


def _at_once(metadata: Any) -> int:
    """Return how many rows of a Parquet file to read at a time: few, if they are large."""
    groups = range(metadata.num_row_groups)
    size = sum(int(metadata.row_group(n).total_byte_size) for n in groups)
    each = max(1, size // max(1, int(metadata.num_rows)))
    return max(1, min(_PARQUET_ROWS, _PARQUET_BYTES // each))


def _values(batch: Any) -> list[Any]:
    try:
        return list(batch.to_pylist())
    except (ValueError, ArithmeticError):  # such as a time between two microseconds
        return [_value(batch.slice(n, 1)) for n in range(batch.num_rows)]


def _value(row: Any) -> Any:
    try:
        return row.to_pylist()[0]
    except (ValueError, ArithmeticError) as error:
        return error


def opened_parquet(path: str) -> Any:
    """
    Return a Parquet file.

    Raises:
        BackfillError: It is none, or there is nothing to read it with.
    """
    need_arrow(path)
    arrow = _arrow()
    try:
        return arrow.parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise BackfillError(f"{path}: {error}") from None


def need_arrow(path: str) -> None:
    """
    Do nothing if Parquet can be read and written here.

    Args:
        path: What is to be read or written.

    Raises:
        BackfillError: It cannot.
    """
    if find_spec("pyarrow") is None:
        raise BackfillError(f"{path}: Parquet needs pyarrow: pip install 'celery-batch[backfill]'")


def _arrow() -> Any:
    import_module("pyarrow.parquet")  # who reads none needs no Arrow
    return import_module("pyarrow")


def files(source: Source) -> Iterator[Any]:
    """Yield the files below a folder, each with its path for a key."""
    folder = Path(source.path)
    for name, _ in listing(folder):
        try:
            yield {"key": name, "file": (folder / name).read_bytes()}
        except OSError as error:
            yield Unreadable(f"{name}: {error.strerror}", key=name)


def listing(folder: Path) -> list[tuple[str, int]]:
    """Return the names and sizes of the files below a folder, in order; hidden ones are none."""
    found = (each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("."))
    return sorted((each.relative_to(folder).as_posix(), each.stat().st_size) for each in found)


def _begun(source: Source, line: bytes) -> bytes:
    """Return the first line without the mark that some programs put before it."""
    if line.startswith(GZIP):
        raise BackfillError(f"{source.path}: is compressed with gzip; unpack it first")
    if line.startswith(_OTHER_ENCODINGS):
        raise BackfillError(f"{source.path}: is UTF-16; convert it to UTF-8")
    return line.removeprefix(codecs.BOM_UTF8)


#: The name that means standard input.
STDIN = "-"


#: Bytes whose lines are counted in a moment.
_SOON_READ = 1 << 30


#: Bytes at the beginning of a file that tell it from another.
_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class Input:
    """
    A source of records.

    Args:
        path: A file, a folder, or `STDIN`.
        format: A name in `FORMATS`; by the path's suffix unless given.

    Raises:
        BackfillError: There is no such file, or its format is not known or cannot be read here.
    """

    path: str
    format: str = ""
    #: What was read of standard input to know it again.
    _begun: list[bytes] = field(default_factory=list, repr=False, compare=False)
    #: Where it is read.
    _at: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.path != STDIN and not Path(self.path).exists():
            raise BackfillError(f"{self.path}: there is no such file or folder")
        if self.path != STDIN and not (Path(self.path).is_file() or Path(self.path).is_dir()):
            raise BackfillError(
                f"{self.path}: is no file, which can be read more than once; give it with"
                f" celery ... --input - < {self.path}"
            )
        if _is_gzip(self.path):
            raise BackfillError(
                f"{self.path}: is compressed with gzip; unpack it first, or give it with"
                f" gzip -dc {self.path} | celery ... --input -"
            )
        if self.kind == "parquet":
            need_arrow(self.path)
        if self.kind not in FORMATS:
            known = ", ".join(FORMATS)
            raise BackfillError(f"{self.path}: its format is not known; name it: {known}")

    @property
    def kind(self) -> str:
        """The format, given or by the suffix."""
        if self.format:
            return self.format
        if self.path == STDIN:
            return "jsonl"
        path = Path(self.path)
        return "files" if path.is_dir() else _SUFFIXES.get(path.suffix.lower(), path.suffix)

    @property
    def identity(self) -> str:
        """What tells this input from another: its size and beginning, or its first line."""
        if self.path == STDIN:
            if not self._begun:
                self._begun.append(sys.stdin.buffer.readline())
            return hashlib.sha256(self._begun[0]).hexdigest()
        path = Path(self.path)
        if path.is_dir():
            names = "\n".join(f"{name} {size}" for name, size in listing(path))
            return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(_HEAD)).hexdigest()
        return f"{path.stat().st_size} {head}"

    def holds(self, path: Path) -> bool:
        """Return whether a file is this one, or would be read as a record."""
        if self.path == STDIN:
            return False
        own, other = Path(self.path).resolve(), path.resolve()
        if own.is_dir():
            return other.is_relative_to(own)
        return own == other or (other.exists() and own.samefile(other))

    def count(self) -> int | None:
        """Return how many records there are, if that can be told in a moment."""
        if self.kind == "parquet":
            return int(opened_parquet(self.path).metadata.num_rows)
        if self.kind == "files" and self.path != STDIN:
            return len(listing(Path(self.path)))
        if self.kind == "jsonl" and self.path != STDIN:
            return _lines(Path(self.path))
        return None

    def records(self) -> Iterator[Any]:
        """
        Yield the records, reading no further than is asked for.

        In the place of one that cannot be read stands an `Unreadable`.

        Raises:
            BackfillError: Nothing can be read here, or nothing more.
        """
        try:
            yield from FORMATS[self.kind](self._source())
        except (UnicodeError, OSError) as error:
            raise BackfillError(f"{self.path}: cannot be read: {error}") from None

    def line(self) -> int:
        """Return the line where the last record begins; 0 where there are none."""
        return self._at[0]

    def _source(self) -> Source:
        if self.path == STDIN:
            return Source(self.path, chain(self._begun, sys.stdin.buffer), at=self._at)
        return Source(self.path, at=self._at)


def _is_gzip(path: str) -> bool:
    if path == STDIN or not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def _lines(path: Path) -> int | None:
    if path.stat().st_size > _SOON_READ:
        return None
    with path.open("rb") as file:
        return sum(not line.isspace() for line in file)


#: What can be read, and how.
FORMATS: dict[str, Callable[[Source], Iterator[Any]]] = {
    "jsonl": json_lines,
    "csv": tables,
    "parquet": parquet_records,
    "files": files,
}


_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


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
