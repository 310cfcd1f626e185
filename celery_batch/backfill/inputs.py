"""Reads rows: JSON lines, CSV, Parquet, .npy, a folder of files, standard input.

Rule 1: a record that cannot be read becomes an `Unreadable`, and the next one follows.
Rule 2: where the beginning of the next record is not known, reading ends with an error.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

from celery_batch.backfill.list_columns import parquet_values
from celery_batch.backfill.npy import npy_rows, opened_npy
from celery_batch.backfill.window import Row, Unreadable
from celery_batch.errors import BackfillError, InvalidRow

__all__ = ["FORMATS", "SUFFIXES", "Arguments", "Input", "hint_of", "need_arrow", "some_fit"]

#: Rows and bytes of a Parquet file that are in memory at once.
_PARQUET_ROWS = 4096

_PARQUET_BYTES = 8 << 20

#: Most characters of a field of CSV, instead of the library's 131,072.
_LARGEST_FIELD = 2**31 - 1

#: The first bytes of a file that gzip has made.
_GZIP = b"\x1f\x8b"

#: The first bytes of files that spreadsheets and some shells write.
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

#: The name that means standard input.
_STDIN = "-"

#: The formats that standard input may have.
_PIPED = ("jsonl", "csv")

#: Largest file whose lines are counted: it takes a moment.
_COUNTED_BYTES = 1 << 30

#: Parts of a file by which it is recognised, and bytes of each: all of a file up to 4 MiB.
_SAMPLES, _SAMPLE = 64, 1 << 16


class Input:
    """A source of records."""

    def __init__(self, path: str, kind: str = "", limit: int | None = None) -> None:
        self.path = path
        self.limit = limit
        self.is_stdin = path == _STDIN
        self.kind = kind or self._kind()
        #: Where the last record begins; 0 where there are no lines.
        self.line = 0
        #: What was read of standard input to recognise it.
        self._first_line: bytes | None = None
        if not self.is_stdin:
            self._check_path(Path(path))
        if self.kind == "parquet":
            need_arrow(path)
        if self.kind == "npy":
            opened_npy(path)
        if self.kind not in FORMATS:
            known = ", ".join(FORMATS)
            raise BackfillError(f"{path}: its format is not known; give --format, of {known}")

    def _kind(self) -> str:
        if self.is_stdin:
            return "jsonl"
        path = Path(self.path)
        return "files" if path.is_dir() else SUFFIXES.get(path.suffix.lower(), path.suffix)

    def _check_path(self, path: Path) -> None:
        if not path.exists():
            raise BackfillError(f"{path}: there is no such file or folder")
        if path.is_dir():
            return
        if not path.is_file():
            raise BackfillError(
                f"{path}: is no regular file, and can be read only once; give it with"
                f" celery ... --input - < {path}"
            )
        with path.open("rb") as file:
            if file.read(len(_GZIP)) == _GZIP:
                kind = SUFFIXES.get(Path(path.stem).suffix.lower(), self.kind)
                pipe = f"gzip -dc {path} | celery ... --input - --format {kind}"
                also = f", or give it with {pipe}" if kind in _PIPED else ""
                raise BackfillError(f"{path}: is compressed with gzip; unpack it first{also}")

    @property
    def identity(self) -> str:
        """What distinguishes this input: its size and samples of it, or its first line."""
        if self.is_stdin:
            if self._first_line is None:
                self._first_line = sys.stdin.buffer.readline()
            return hashlib.sha256(self._first_line).hexdigest()
        path = Path(self.path)
        if path.is_dir():
            names = "\n".join(f"{name} {size}" for name, size in _listing(path))
            return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()
        size = path.stat().st_size
        step = max(_SAMPLE, math.ceil((size - _SAMPLE) / (_SAMPLES - 1)))
        digest = hashlib.sha256()
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(min(start, max(size - _SAMPLE, 0)))
                digest.update(file.read(_SAMPLE))
        return f"{size} {digest.hexdigest()}"

    def holds(self, path: Path) -> bool:
        """Return whether a file is this one, or would be read as a record."""
        if self.is_stdin:
            return False
        own, other = Path(self.path).resolve(), path.resolve()
        if own.is_dir():
            return other.is_relative_to(own)
        return own == other or (other.exists() and own.samefile(other))

    def count(self) -> int | None:
        """Return how many records will be read, if counting them takes a moment only."""
        count = self._count()
        return count if count is None or self.limit is None else min(count, self.limit)

    def _count(self) -> int | None:
        path = Path(self.path)
        if self.kind == "parquet":
            return int(_opened_parquet(self.path).metadata.num_rows)
        if self.kind == "npy":
            return len(opened_npy(self.path))
        if self.kind == "files" and not self.is_stdin:
            return len(_listing(path))
        if self.kind == "jsonl" and not self.is_stdin and path.stat().st_size <= _COUNTED_BYTES:
            with path.open("rb") as file:
                return sum(not line.isspace() for line in file)
        return None

    def records(self) -> Iterator[Any]:
        """Yield the records, reading no further than needed; `Unreadable` for a broken one."""
        try:
            yield from islice(FORMATS[self.kind](self), self.limit)
        except (UnicodeError, OSError) as error:
            raise BackfillError(f"{self.path}: cannot be read: {error}") from None

    @contextmanager
    def opened(self) -> Iterator[Iterable[bytes]]:
        """Open it and give its lines."""
        if self.is_stdin:
            read = [] if self._first_line is None else [self._first_line]
            yield chain(read, sys.stdin.buffer)
            return
        with Path(self.path).open("rb") as file:
            yield file


def _json_lines(source: Input) -> Iterator[Any]:
    """Yield the value of each line that is not blank."""
    with source.opened() as lines:
        for number, line in enumerate(lines, start=1):
            source.line = number
            text = _first_line(source, line) if number == 1 else line
            if text.isspace() or not text:
                continue
            try:
                yield json.loads(text.decode().strip())
            except json.JSONDecodeError as error:
                yield Unreadable(f"line {number} is not JSON: {error.msg} column {error.colno}")
            except (ValueError, RecursionError) as error:
                yield Unreadable(f"line {number} is not JSON: {error}")


def _csv_records(source: Input) -> Iterator[Any]:
    """Yield the records of CSV, by the names in its first line."""
    csv.field_size_limit(_LARGEST_FIELD)
    with source.opened() as lines:
        # A field that is no UTF-8 is found when its record is whole.
        texts = (
            (line if number else _first_line(source, line)).decode(errors="surrogateescape")
            for number, line in enumerate(lines)
        )
        reader = csv.reader(texts, strict=True)
        try:
            names: list[str] = next(reader, [])
        except csv.Error as error:
            raise BackfillError(f"{source.path}: line 1: {error}") from None
        if twice := {name for name in names if names.count(name) > 1}:
            raise BackfillError(f"{source.path}: line 1 names {', '.join(sorted(twice))} twice")
        while names:
            source.line = reader.line_num + 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield _broken_csv(source, error)
                continue
            if fields:
                yield _csv_record(names, fields, source.line)


def _broken_csv(source: Input, error: csv.Error) -> Unreadable:
    if "unexpected end of data" in str(error):
        found = f"{source.path}: line {source.line} has a quote that nothing closes"
        raise BackfillError(f"{found}; correct it, and start anew with --restart") from None
    return Unreadable(f"line {source.line}: {error}")


def _csv_record(names: list[str], fields: list[str], line: int) -> Any:
    if len(fields) != len(names):
        return Unreadable(f"line {line} has {len(fields)} fields, the first line {len(names)}")
    try:
        for each in fields:
            each.encode()
    except UnicodeError:
        return Unreadable(f"line {line} is not UTF-8")
    return dict(zip(names, fields, strict=True))


def _first_line(source: Input, line: bytes) -> bytes:
    """Return the first line without the mark that some programs put before it."""
    if line.startswith(_GZIP):
        raise BackfillError(f"{source.path}: is compressed with gzip; unpack it first")
    if line.startswith(_OTHER_ENCODINGS):
        raise BackfillError(f"{source.path}: is UTF-16; convert it to UTF-8")
    return line.removeprefix(codecs.BOM_UTF8)


def _parquet_records(source: Input) -> Iterator[Any]:
    """Yield the records of a Parquet file."""
    file = _opened_parquet(source.path)
    row = 0
    try:
        for batch in file.iter_batches(batch_size=_at_once(file.metadata)):
            for record in parquet_values(batch):
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


def _opened_parquet(path: str) -> Any:
    need_arrow(path)
    arrow = _arrow()
    try:
        return arrow.parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise BackfillError(f"{path}: {error}") from None


def need_arrow(path: str) -> None:
    """Raise BackfillError if Parquet cannot be read and written here."""
    if find_spec("pyarrow") is None:
        raise BackfillError(f"{path}: Parquet needs pyarrow: pip install 'celery-batch[parquet]'")


def _arrow() -> Any:
    import_module("pyarrow.parquet")  # only Parquet needs it
    return import_module("pyarrow")


def _files(source: Input) -> Iterator[Any]:
    """Yield the files below a folder, each with its path for a key."""
    folder = Path(source.path)
    for name, _ in _listing(folder):
        try:
            yield {"key": name, "file": (folder / name).read_bytes()}
        except OSError as error:
            yield Unreadable(f"{name}: {error.strerror}", key=name)


def _listing(folder: Path) -> list[tuple[str, int]]:
    """Return the names and sizes of the files below a folder, in order, without hidden ones."""
    found = (each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("."))
    return sorted((each.relative_to(folder).as_posix(), each.stat().st_size) for each in found)


#: What can be read, and how.
FORMATS: dict[str, Callable[[Input], Iterator[Any]]] = {
    "jsonl": _json_lines,
    "csv": _csv_records,
    "parquet": _parquet_records,
    "npy": lambda source: npy_rows(source.path),
    "files": _files,
}

#: The formats of files by their suffixes.
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".npy": "npy",
}

#: Fields that name a record, the first that is there.
_KEYS = ("id", "key")

#: Rows at the beginning of which at least one has to fit; else the command is wrong.
_FIRST = 100

#: Values of JSON that are no records: recognised by type, which is faster than `isinstance`.
_VALUES = frozenset((int, float, str, bool, list, type(None)))

#: Types with fields; most records are of the first.
_RECORDS = (dict, Mapping)


class Arguments:
    """How records become rows."""

    def __init__(
        self,
        signature: inspect.Signature,
        *,
        key: str | None = None,  # the field that names a record; ``id`` or ``key`` unless given
        field: str | None = None,  # the field that is the value of the only parameter
        keeps_items: bool = False,  # rows refer to the records that they were made of
    ) -> None:
        self._parameters = list(signature.parameters.values())
        first, *others = self._parameters
        self._needed = {first.name, *(one.name for one in others if one.default is one.empty)}
        self._names = {one.name for one in self._parameters}
        self._defaults = tuple(one.default for one in others)
        self.key = key
        self.field = field
        self._keeps_items = keeps_items

    def rows(self, records: Iterable[Any], line: Callable[[], int] = lambda: 0) -> Iterator[Row]:
        """Yield a row for each record, in order; one that does not fit has a flaw."""
        takes_values = self.field is None and len(self._needed) == 1
        for position, record in enumerate(records):
            item = record if self._keeps_items else None
            if takes_values and type(record) in _VALUES:
                values = (record, *self._defaults)
                yield Row(position, str(position + 1), values, line=line(), item=item)
            else:
                row = Row(position, str(position + 1), (), line=line(), item=item)
                yield self._row(record, row)

    def _row(self, record: Any, row: Row) -> Row:
        if isinstance(record, Unreadable):
            flaw = f"{InvalidRow.__name__}: {record.why}"
            return row._replace(key=record.key or row.key, flaw=flaw)
        try:
            row = row._replace(key=self._key_of(record, row))
            values = self._values(record, row)
        except InvalidRow as error:
            return row._replace(flaw=f"{type(error).__name__}: {error}")
        is_whole = values[0] is record and isinstance(record, _RECORDS)
        return row._replace(values=values, is_whole=is_whole)

    def _key_of(self, record: Any, row: Row) -> str:
        if not isinstance(record, _RECORDS):
            return row.key
        if self.key is not None:
            if self.key not in record:
                raise InvalidRow(f"{row.place} has no field {self.key!r} to be named by")
            names: tuple[str, ...] = (self.key,)
        else:
            names = _KEYS
        found = (record[name] for name in names if name in record)
        return next((str(value) for value in found if value is not None), row.key)

    def _values(self, record: Any, row: Row) -> tuple[Any, ...]:
        if self.field is not None:
            if not isinstance(record, _RECORDS) or self.field not in record:
                found = _shown(record)
                raise InvalidRow(f"{row.place} has no field {self.field!r}, it has {found}")
            record = record[self.field]
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
        return f"{row.place} must have the fields {wanted}, it has {_shown(record)}"


def _shown(record: Any) -> str:
    """Return what a record has, for an error."""
    return str(sorted(map(str, record))) if isinstance(record, _RECORDS) else type(record).__name__


def hint_of(row: Row) -> str:
    """Return what may be wrong with a row that failed, in words; "" if that is not known."""
    fields = [str(name) for name in row.values[0]] if row.is_whole else []
    if not fields:
        return ""
    one = next((name for name in fields if name not in _KEYS), fields[0])
    return (
        f"The record has the fields {', '.join(fields)}, and the model got all of it;"
        f" --field {one} gives it one of them."
    )


def some_fit(rows: Iterator[Row]) -> Iterator[Row]:
    """Return the same rows if any of the first fits."""
    first: list[Row] = []
    for row in rows:
        first.append(row)
        if not row.flaw:
            return chain(first, rows)
        if len(first) == _FIRST:
            break
    if first:
        reason = first[0].flaw.partition(": ")[2]
        others = f"; the same for the first {len(first)} rows" if len(first) > 1 else ""
        raise BackfillError(f"no row fits the task: {reason}{others}")
    return iter(())
