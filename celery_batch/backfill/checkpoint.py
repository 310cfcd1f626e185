"""The files of a backfill on disk, from which the same command goes on.

Rule 1: answers are appended to a partial file and synced before the journal says so.
Rule 2: the journal is replaced as a whole, and says how much of the partial file counts, come
        what may.  What lies behind that outlives this process, but not a power cut: it counts
        as far as its lines are whole, and the rest is cut off.
Rule 3: a file has its name once it is whole, so that no reader finds half of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
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


class RangeSet:
    """
    A set of numbers, kept as ranges.

    Args:
        ranges: Each with its first number and the one after its last; sorted and disjoint.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        ranges = list(ranges)
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number)
        return at > 0 and number < self._ends[at - 1]

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        at = bisect_right(self._starts, number)
        if at > 0 and self._ends[at - 1] == number:
            self._ends[at - 1] = number + 1
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
            at += 1
        if at < len(self._starts) and self._starts[at] == number + 1:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]


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


#: The command's name for each.
_OPTIONS = {
    "task": "TASK",
    "format": "--format",
    "key": "--key",
    "field": "--field",
    "limit": "--limit",
}


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return in words what has changed, "" if nothing has; unknown values are not compared."""
    names = [name for name in now if name in before and before[name] != now[name]]
    return ", and ".join(
        "the input has changed since"
        if name == "input"
        else f"{_OPTIONS.get(name, name)} was {_given(before[name])} then,"
        f" and is {_given(now[name])} now"
        for name in names
    )


def _given(value: Any) -> str:
    return "not given" if value is None else str(value)


#: Seconds between two syncs: so much runs again after a power cut, besides pending rows.
_SYNC_EVERY = 1.0


_VERSION = 1


#: A typed value has this key, such as an array.
_TYPED = '"__type__"'


_decode: Callable[[str], Any] = json.JSONDecoder(object_hook=array_hook).decode


class Checkpoint:
    """
    The partial file of an output, and its journal.

    Args:
        output: The path that the whole output will have.
        about: What has to be the same for the work to go on: the task, its input, and how
            rows are made of it.

    Raises:
        BackfillError: Another process writes them, or they belong to another backfill.
    """

    def __init__(self, output: Path, about: dict[str, Any]) -> None:
        self._output = output
        self.partial, self._journal = self.paths(output)
        self._about = about
        self.done = RangeSet()
        self.failed = 0
        #: When; None until there is a journal that says whose the lines are.
        self._synced: float | None = None
        #: Whether the file says what `done` says; a signal may come in between.
        self._is_whole = True
        self._file = _locked(self.partial)
        try:
            self._resume()
        except BaseException:
            self._file.close()
            raise

    @staticmethod
    def paths(output: Path) -> tuple[Path, Path]:
        """Return where an output's partial file and journal are."""
        return (
            output.with_name(f"{output.name}.partial"),
            output.with_name(f"{output.name}.journal"),
        )

    @classmethod
    def state(cls, output: Path) -> dict[str, Any] | None:
        """
        Return the journal of an output; None where there is none.

        Raises:
            BackfillError: It cannot be read.
        """
        journal = cls.paths(output)[1]
        try:
            found: dict[str, Any] = json.loads(journal.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BackfillError(
                f"{journal}: cannot be read: {error}; --restart starts anew"
            ) from None
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def add(self, answers: Iterable[Answer]) -> int:
        """
        Write answers, which are safe from power cuts after the next sync.

        Returns:
            How many of these rows have failed.
        """
        answers = list(answers)
        lines = [_line(answer) for answer in answers]
        failed = sum(has_failed for _, has_failed in lines)
        if self._synced is None and answers:
            self.sync()
        self._is_whole = False  # interrupted in here, only the file knows what counts
        with writing(self.partial):
            self._file.write("".join([line for line, _ in lines]).encode())
            self._file.flush()
        for answer in answers:
            self.done.add(answer.row.position)
        self.failed += failed
        self._is_whole = True
        if self._synced is not None and time.monotonic() - self._synced >= _SYNC_EVERY:
            self.sync()
        return failed

    def sync(self) -> None:
        """
        Make the answers written safe from crashes and power cuts.

        Raises:
            BackfillError: The disk is full, say; what was synced before still counts.
        """
        try:
            with writing(self.partial):
                self._file.flush()
                os.fsync(self._file.fileno())
        except BackfillError:
            self._is_whole = False
            raise
        state = {
            "version": _VERSION,
            "about": self._about,
            "bytes": self._file.tell(),
            "done": list(self.done),
            "failed": self.failed,
        }
        with replacing(self._journal) as fresh:
            fresh.write_text(json.dumps(state), encoding="utf-8")
        self._synced = time.monotonic()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all answers as they were written, with arrays that are not decoded yet."""
        self._file.flush()
        with self.partial.open(encoding="utf-8") as file:
            for line in file:
                yield _decode(line) if _TYPED in line else json.loads(line)

    def remove(self) -> None:
        """Remove both files: the output is whole."""
        self._unlink()
        self._file.close()

    def close(self) -> None:
        """Sync and unlock the files; remove them where nothing was answered."""
        try:
            if self._is_whole and not self._file.closed and self.partial.exists():
                end = self.sync if len(self.done) else self._unlink
                end()
        finally:
            # What could not be written before cannot now, and does not count.
            with nullcontext() if self._is_whole else suppress(OSError):
                self._file.close()

    @classmethod
    def forget(cls, output: Path) -> None:
        """
        Remove the files of an output.

        Raises:
            BackfillError: Another process is writing them.
        """
        partial, journal = cls.paths(output)
        if partial.exists():
            with _locked(partial):
                journal.unlink(missing_ok=True)
                partial.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)

    def _unlink(self) -> None:
        self._journal.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)

    def _resume(self) -> None:
        state = self.state(self._output)
        end = 0 if state is None else self._take_over(state)  # without a journal no line counts
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def _take_over(self, state: dict[str, Any]) -> int:
        """Take over what an earlier run has answered; return where that ends."""
        if state["version"] != _VERSION:
            raise BackfillError(f"{self._journal}: is of another release; use --restart")
        if self.partial.stat().st_size < state["bytes"]:
            raise BackfillError(
                f"{self.partial}: is shorter than {self._journal.name} says; use --restart"
            )
        self.done, self.failed = RangeSet(state["done"]), state["failed"]
        end = self._read_unsynced(state["bytes"])
        # Where nothing was answered nothing is lost, whatever has changed.
        if self.done and (changed := changes(state["about"], self._about)):
            raise BackfillError(
                f"{self._journal}: {changed}; use --restart to start anew, or name another output"
            )
        return end

    def _read_unsynced(self, start: int) -> int:
        """Add what was answered since the last sync; return where that ends."""
        self._file.seek(start)
        for line in self._file:
            found = _position(line)
            if found is None or found[0] in self.done:
                break
            self.done.add(found[0])
            self.failed += found[1]
            start += len(line)
        return start


def _position(line: bytes) -> tuple[int, bool] | None:
    """Return a line's row and whether it failed; None if the line is not whole."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else {}
        return int(row["position"]), "error" in row
    except (ValueError, TypeError, LookupError):
        return None


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
    """
    The file beside an output that names its failed rows.

    People read it, too: it counts from 1, as their editors do.

    Args:
        output: The path of the output.
    """

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
        """
        Return the failed rows' positions in the input, and their names.

        Raises:
            BackfillError: There is no such output, or nothing in it has failed.
        """
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
            has_begun = Checkpoint.paths(self._output)[0].exists()
            what = "is not complete yet" if has_begun else "is not there"
            raise BackfillError(f"{self._output}: {what}; run without --retry-errors first")
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise BackfillError(f"{self._output}: none of its rows has failed") from None
        return [json.loads(line) for line in text.split("\n") if line]

    def merged(self, answers: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """
        Yield the output's records, with other answers in place of those that failed.

        Args:
            answers: As records of a checkpoint.
        """
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
    """
    Return what is known of a backfill, as plain data.

    Args:
        output: The path that it was given.

    Returns:
        ``output``, ``task``, ``complete``, ``rows`` (None if that is not known), ``failed``, and
        ``at``: of what time that is, as seconds of the epoch.

    Raises:
        BackfillError: No backfill has written there, or what it wrote cannot be read.
    """
    about = read_about(output)
    if output.exists() and about:
        at, rows, failed = output, about.get("rows"), Failures(output).count()
    else:
        at, state = Checkpoint.paths(output)[1], Checkpoint.state(output)
        if state is None:
            raise BackfillError(f"{output}: no backfill has written there")
        about, failed, rows = state["about"], state["failed"], len(RangeSet(state["done"]))
    return {
        "output": str(output.resolve()),
        "task": about.get("task"),
        "complete": at is output,
        "rows": rows,
        "failed": failed,
        "at": at.stat().st_mtime,
    }
