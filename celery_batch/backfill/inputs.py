"""Where rows come from: JSON lines, CSV, Parquet, a folder of files, standard input."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from celery_batch.errors import BackfillError

__all__ = ["FORMATS", "STDIN", "Input"]

#: The name that means standard input.
STDIN = "-"

#: Rows of a Parquet file that are in memory at once.
_PARQUET_ROWS = 4096

#: Characters of a field of CSV, in place of the 131,072 that the library allows.
_LARGEST_FIELD = 2**31 - 1

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
        BackfillError: There is no such file, or its format is not known.
    """

    path: str
    format: str = ""

    def __post_init__(self) -> None:
        if self.path != STDIN and not Path(self.path).exists():
            raise BackfillError(f"{self.path}: there is no such file or folder")
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
        """What tells this input from another: its size and its beginning; "" for standard input."""
        if self.path == STDIN:
            return ""
        path = Path(self.path)
        if path.is_dir():
            names = "\n".join(f"{name} {size}" for name, size in _listing(path))
            return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(_HEAD)).hexdigest()
        return f"{path.stat().st_size} {head}"

    def holds(self, path: Path) -> bool:
        """Return whether a file would be read as a record."""
        if self.path == STDIN:
            return False
        folder = Path(self.path).resolve()
        return folder.is_dir() and path.resolve().is_relative_to(folder)

    def count(self) -> int | None:
        """Return how many records there are, if that can be told without reading all of them."""
        if self.kind == "parquet":
            return int(_parquet(self.path).metadata.num_rows)
        if self.kind == "files" and self.path != STDIN:
            return len(_listing(Path(self.path)))
        return None

    def records(self) -> Iterator[Any]:
        """
        Yield the records, reading no further than is asked for.

        Raises:
            BackfillError: A record cannot be read; it says which and why.
        """
        try:
            yield from FORMATS[self.kind](self.path)
        except (UnicodeDecodeError, OSError) as error:
            raise BackfillError(f"{self.path}: cannot be read: {error}") from None


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    if path == STDIN:
        yield sys.stdin
        return
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        yield file


def _json_lines(path: str) -> Iterator[Any]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise BackfillError(f"{path}: line {number} is not JSON: {error}") from None


def _csv(path: str) -> Iterator[dict[str, str]]:
    csv.field_size_limit(_LARGEST_FIELD)
    with _opened(path) as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for record in reader:
                if None in record or None in record.values():
                    wanted = f"{len(reader.fieldnames or ())} fields like the first"
                    raise BackfillError(f"{path}: line {reader.line_num} has not {wanted}")
                yield record
        except csv.Error as error:
            raise BackfillError(f"{path}: line {reader.line_num}: {error}") from None


def _parquet_records(path: str) -> Iterator[dict[str, Any]]:
    for batch in _parquet(path).iter_batches(batch_size=_PARQUET_ROWS):
        yield from batch.to_pylist()


def _parquet(path: str) -> Any:
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415 (who reads none needs no Arrow)
    except ImportError:
        raise BackfillError(f"{path}: Parquet needs pyarrow; pip install pyarrow") from None
    try:
        return parquet.ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise BackfillError(f"{path}: {error}") from None


def _files(path: str) -> Iterator[dict[str, Any]]:
    folder = Path(path)
    for name, _ in _listing(folder):
        yield {"key": name, "file": (folder / name).read_bytes()}


def _listing(folder: Path) -> list[tuple[str, int]]:
    files = (each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("."))
    return sorted((each.relative_to(folder).as_posix(), each.stat().st_size) for each in files)


#: What can be read, and how.
FORMATS: dict[str, Callable[[str], Iterator[Any]]] = {
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet_records,
    "files": _files,
}

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
