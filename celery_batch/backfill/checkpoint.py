"""The files of a backfill on disk, from which the same command goes on.

Rule 1: answers are appended to a partial file, whose first line says what they are made of; it is
        synced after the first of them, and then every second.
Rule 2: what is in it counts as far as its lines are whole, however the process ended, and the
        rest is cut off.
Rule 3: a file has its name once it is whole, so that no reader finds half of it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Self

from celery_batch.backfill.inputs import SUFFIXES, Input
from celery_batch.backfill.npy import opened_npy
from celery_batch.backfill.window import Answer, Unreadable
from celery_batch.errors import BackfillError
from celery_batch.serialization.typed_json import array_hook, encode_json

__all__ = [
    "Checkpoint",
    "Failures",
    "about_path",
    "changes",
    "output_status",
    "read_about",
    "replacing",
    "write_about",
]

#: Seconds between two syncs: so much runs again after a power cut, besides pending rows.
_SYNC_EVERY = 1.0

#: A typed value has this key, such as an array.
_TYPED = '"__type__"'

_decode: Callable[[str], Any] = json.JSONDecoder(object_hook=array_hook).decode

#: How a line begins: an output may be long, and is not decoded where rows are only counted.
_START = re.compile(
    rb'\{"position": (\d+), "key": "(?:[^"\\]|\\.)*", "line": \d+, "(output|error)": '
)


class RowSet:
    """The positions of rows: all below the first missing one, and those beyond it."""

    def __init__(self) -> None:
        self._first = 0
        self._beyond: set[int] = set()

    def __len__(self) -> int:
        return self._first + len(self._beyond)

    def __contains__(self, position: int) -> bool:
        return position < self._first or position in self._beyond

    def add(self, position: int) -> None:
        """Add a position."""
        self._beyond.add(position)
        while self._first in self._beyond:
            self._beyond.remove(self._first)
            self._first += 1


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise BackfillError where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise BackfillError(
            f"{path}: cannot be written: {error.strerror or error}; the outputs are kept,"
            " and the same command continues when it can be written"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to; the file there is synced, and takes the place of the other."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with writing(path):
            yield fresh
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(path)
            _sync_folder(path.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)  # a full disk has no room for half a file
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _locked(partial: Path) -> IO[bytes]:
    """Open a file for appending, and lock it against other processes."""
    try:
        file = partial.open("a+b")
    except OSError as error:
        folder = partial.parent
        why = error.strerror if folder.exists() else f"there is no folder {folder}"
        raise BackfillError(f"{partial}: cannot be written: {why}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = os.path.samestat(partial.stat(), os.fstat(file.fileno()))
    except OSError:
        is_there = False
    if not is_there:  # or removed since it was opened
        file.close()
        raise BackfillError(f"{partial}: another backfill is writing it")
    return file


def about_path(output: Path) -> Path:
    """Return the path of the file beside an output that says what it was made of."""
    return output.with_name(f"{output.name}.about")


def read_about(output: Path) -> dict[str, Any]:
    """Return what an output was made of; nothing if that is not known."""
    try:
        found = json.loads(about_path(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_about(output: Path, about: dict[str, Any]) -> None:
    """Write down what an output is made of."""
    with replacing(about_path(output)) as fresh:
        fresh.write_text(json.dumps(about) + "\n", encoding="utf-8")


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return in words what has changed, "" if nothing has; unknown values are not compared."""
    names = [name for name in now if name in before and before[name] != now[name]]
    return ", and ".join(
        "the input has changed since"
        if name == "input"
        else f"{'TASK' if name == 'task' else f'--{name}'} was {_given(before[name])} then,"
        f" and is {_given(now[name])} now"
        for name in names
    )


def _given(value: Any) -> str:
    return "not given" if value is None else str(value)


class Checkpoint:
    """The partial file of an output."""

    def __init__(self, output: Path, about: dict[str, Any]) -> None:
        self.partial = self.path(output)
        #: The task, its input and how rows are made: the same for work to go on.
        self._about = about
        #: When.
        self._synced = -math.inf
        self._file = _locked(self.partial)
        try:
            self.done, self.failed = self._resume()
        except BaseException:
            self._file.close()
            raise

    @staticmethod
    def path(output: Path) -> Path:
        """Return where an output's partial file is."""
        return output.with_name(f"{output.name}.partial")

    @classmethod
    def state(cls, output: Path) -> tuple[dict[str, Any], RowSet, int]:
        """Return what an output is made of, which rows were answered, and how many have failed."""
        partial = cls.path(output)
        try:
            with partial.open("rb") as file:
                return _read(file)[:3]
        except FileNotFoundError:
            return {}, RowSet(), 0
        except OSError as error:
            raise BackfillError(f"{partial}: cannot be read: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def add(self, answers: Iterable[Answer]) -> int:
        """Write answers, safe from power cuts after the next sync; return how many failed."""
        answers = list(answers)
        lines = [_line(answer) for answer in answers]
        failed = sum(has_failed for _, has_failed in lines)
        if answers and not self._file.tell():
            lines.insert(0, (json.dumps({"about": self._about}) + "\n", False))
        with writing(self.partial):
            self._file.write("".join([line for line, _ in lines]).encode())
            self._file.flush()
        for answer in answers:
            self.done.add(answer.row.position)
        self.failed += failed
        if time.monotonic() - self._synced >= _SYNC_EVERY:
            self.sync()
        return failed

    def sync(self) -> None:
        """Make the answers written safe from power cuts."""
        with writing(self.partial):
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._synced == -math.inf:  # the file may be new, and its name is in the folder
                _sync_folder(self.partial.parent)
        self._synced = time.monotonic()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all answers as they were written, with arrays that are not decoded yet."""
        self._file.flush()
        with self.partial.open(encoding="utf-8") as file:
            for line in islice(file, 1, None):
                yield _decode(line) if _TYPED in line else json.loads(line)

    def remove(self) -> None:
        """Remove the file: the output is whole."""
        self.partial.unlink(missing_ok=True)
        self._file.close()

    def close(self) -> None:
        """Sync and unlock the file; remove it where nothing was answered."""
        try:
            if not self._file.closed and self.partial.exists():
                if self._file.tell():
                    self.sync()
                else:
                    self.partial.unlink(missing_ok=True)
        finally:
            with suppress(OSError):  # what could not be written before cannot now
                self._file.close()

    @classmethod
    def forget(cls, output: Path) -> None:
        """Remove the file of an output."""
        partial = cls.path(output)
        if partial.exists():
            with _locked(partial):
                partial.unlink(missing_ok=True)

    def _resume(self) -> tuple[RowSet, int]:
        """Return which rows an earlier run has answered, and how many of them have failed."""
        self._file.seek(0)
        about, done, failed, end = _read(self._file)
        # Where nothing was answered nothing is lost, whatever has changed.
        if done and (changed := changes(about, self._about)):
            raise BackfillError(
                f"{self.partial}: {changed}; use --restart to start anew, or name another output"
            )
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)
        return done, failed


def _read(file: IO[bytes]) -> tuple[dict[str, Any], RowSet, int, int]:
    """Return what `Checkpoint.state` does of a partial file, and where that ends."""
    done, failed, head = RowSet(), 0, file.readline()
    if not head.endswith(b"\n"):  # it is empty, or was never synced
        return {}, done, failed, 0
    try:
        about: dict[str, Any] = json.loads(head)["about"]
    except (ValueError, TypeError, LookupError):
        raise BackfillError(
            f"{file.name}: cannot be read: its first line is of no backfill; --restart starts anew"
        ) from None
    end = len(head)
    for line in file:
        found = _position(line)
        if found is None or found[0] in done:
            break
        done.add(found[0])
        failed += found[1]
        end += len(line)
    return (about, done, failed, end) if done else ({}, done, failed, 0)


def _position(line: bytes) -> tuple[int, bool] | None:
    """Return a line's row and whether it failed; None if the line is not whole."""
    start = _START.match(line)
    if start is None or not line.endswith(b"}\n") or b"\0" in line:  # as a power cut leaves holes
        return None
    return int(start[1]), start[2] == b"error"


def _line(answer: Answer) -> tuple[str, bool]:
    """Return an answer's line, and whether the row has failed."""
    row, error = answer.row, answer.error
    record = {"position": row.position, "key": row.key, "line": row.line}
    if not error:
        try:
            return f"{encode_json(record | {'output': answer.output})}\n", False
        except (TypeError, ValueError, RecursionError) as flaw:  # JSON has no such value
            error = f"{type(flaw).__name__}: {flaw}"
    return f"{encode_json(record | {'error': error})}\n", True


class Failures:
    """The file beside an output that names its failed rows, counted from 1, as editors do."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.path = output.with_name(f"{output.name}.errors")
        #: Whether a row has the same place in the output as in the input.
        self._is_aligned = SUFFIXES.get(output.suffix.lower()) == "npy"

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Write which of an output's records have failed; no file if none has."""
        lines = self._failed(records)
        first = next(lines, None)
        if first is None:
            with writing(self.path):
                self.path.unlink(missing_ok=True)
                _sync_folder(self.path.parent)
            return
        with replacing(self.path) as fresh, fresh.open("w", encoding="utf-8") as file:
            file.writelines(chain([first], lines))

    def keys(self) -> dict[int, str]:
        """Return the failed rows' positions in the input, and their names."""
        return {each["input_row"] - 1: each["key"] for each in self._read()}

    def count(self) -> int:
        """Return how many of an output's rows have failed."""
        try:
            with self.path.open("rb") as file:
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0

    def _read(self) -> list[dict[str, Any]]:
        if not self._output.exists():
            has_begun = Checkpoint.path(self._output).exists()
            what = "is not complete yet" if has_begun else "is not there"
            raise BackfillError(f"{self._output}: {what}; run without --retry-errors first")
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise BackfillError(f"{self._output}: none of its rows has failed") from None
        return [json.loads(line) for line in text.split("\n") if line]

    def merged(self, answers: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the output's records, with other answers in place of those that failed."""
        failed = {each["output_row"]: each for each in self._read()}
        rows = {each["input_row"] - 1: row for row, each in failed.items()}
        # Rows that an earlier try has answered may not be among the failed any more.
        fresh = {rows[each["position"]]: each for each in answers if each["position"] in rows}
        for row, record in enumerate(self._written(failed), start=1):
            if isinstance(record, Unreadable):
                raise BackfillError(f"{self._output}: was changed: {record.why}")
            kept = {name: value for name, value in record.items() if value is not None}
            was = failed.get(row, {"input_row": row if self._is_aligned else 0})
            place = {"position": was["input_row"] - 1, "line": was.get("line", 0)}
            yield fresh.get(row, kept | place)

    def _written(self, failed: dict[int, dict[str, Any]]) -> Iterator[Any]:
        """Yield the output's records."""
        if not self._is_aligned:
            yield from Input(str(self._output)).records()
            return
        for row, output in enumerate(opened_npy(str(self._output)), start=1):
            was = failed.get(row)
            end = {"output": output} if was is None else {"error": was["error"]}
            yield {"key": str(row) if was is None else was["key"], **end}

    def _failed(self, records: Iterable[dict[str, Any]]) -> Iterator[str]:
        """Yield a line for each record that has failed."""
        for row, record in enumerate(records, start=1):
            if error := record.get("error"):
                line = {"line": record["line"]} if record["line"] else {}
                input_row = record["position"] + 1
                output_row = input_row if self._is_aligned else row
                place = {**line, "input_row": input_row, "output_row": output_row}
                yield json.dumps({"key": record["key"], "error": error, **place}) + "\n"


def output_status(output: Path) -> dict[str, Any]:
    """Return what is known of the backfill into an output, as plain data."""
    about = read_about(output)
    if output.exists() and about:
        at, rows, failed = output, about.get("rows"), Failures(output).count()
    else:
        at, (about, done, failed) = Checkpoint.path(output), Checkpoint.state(output)
        rows = len(done)
        if not about:
            raise BackfillError(f"{output}: no backfill has written there")
    return {
        "output": str(output.resolve()),
        "task": about.get("task"),
        "complete": at is output,
        "rows": rows,  # None if it is not known
        "failed": failed,
        "at": at.stat().st_mtime,  # when that was so
    }
