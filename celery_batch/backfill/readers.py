"""
How each form of input is read.

Rule 1: a record that cannot be read is one `Unreadable`, and the next one follows.
Rule 2: where it cannot be told where the next one begins, reading ends with an error.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from celery_batch.backfill.rows import Unreadable
from celery_batch.errors import BackfillError

__all__ = [
    "GZIP",
    "Source",
    "files",
    "json_lines",
    "listing",
    "need_arrow",
    "opened_parquet",
    "parquet_records",
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
