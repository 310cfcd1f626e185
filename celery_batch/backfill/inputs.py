"""Where rows come from: JSON lines, CSV, Parquet, a folder of files, standard input."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from celery_batch.backfill.readers import (
    GZIP,
    Source,
    files,
    json_lines,
    listing,
    need_arrow,
    opened_parquet,
    parquet_records,
    tables,
)
from celery_batch.errors import BackfillError

__all__ = ["FORMATS", "STDIN", "Input"]

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
