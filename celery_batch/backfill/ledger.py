"""
What has been answered so far, on disk, so that the same command goes on from there.

Rule 1: answers are appended to a partial file and synced before the journal says so.
Rule 2: the journal is replaced as a whole, and says how much of the partial file counts, come
        what may.  What lies behind that outlives this process, but not a power cut: it counts
        as far as its lines are whole, and the rest is cut off.
Rule 3: nobody reads a file that is being written: the output has its name once it is whole.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any, Self

from kombu.utils.json import JSONEncoder

from celery_batch.backfill.changes import changes
from celery_batch.backfill.disk import locked, sync_folder, writing
from celery_batch.backfill.rows import Answered
from celery_batch.backfill.spans import Spans
from celery_batch.errors import BackfillError

__all__ = ["Ledger"]

#: Seconds between two syncs: so much is asked again after a power cut, besides what was in flight.
_SYNC_EVERY = 1.0

_VERSION = 1

_encode: Callable[[Any], str] = JSONEncoder().encode


class Ledger:
    """
    The partial file of an output, and its journal.

    Args:
        output: The path that the whole output will have.
        about: What has to be the same for the work to go on: the task, its input, and how
            rows are made of it.

    Raises:
        BackfillError: Another process is at it, or what is there is of another backfill.
    """

    def __init__(self, output: Path, about: dict[str, Any]) -> None:
        self._output = output
        self.partial, self._journal = self.paths(output)
        self._about = about
        self.done = Spans()
        self.failed = 0
        #: When; None until there is a journal that says whose the lines are.
        self._synced: float | None = None
        #: Whether the file says what `done` says; a signal may come in between.
        self._is_whole = True
        self._file = locked(self.partial)
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
        Return what an output's journal says; None where there is none.

        Args:
            output: The path of the output.

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
                f"{journal}: cannot be read: {error}; --restart begins anew"
            ) from None
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def add(self, answers: Iterable[Answered]) -> None:
        """Take answers in; they are safe from power cuts after the next sync."""
        answers = list(answers)
        lines = [_line(answer) for answer in answers]
        if self._synced is None and answers:
            self.sync()
        self._is_whole = False  # interrupted in here, only the file knows what counts
        with writing(self.partial):
            self._file.write("".join([line for line, _ in lines]).encode())
            self._file.flush()
        for answer in answers:
            self.done.add(answer.row.position)
        self.failed += sum(has_failed for _, has_failed in lines)
        self._is_whole = True
        if self._synced is not None and time.monotonic() - self._synced >= _SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        """
        Make what was taken in safe from crashes and power cuts.

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
        fresh = self._journal.with_name(f"{self._journal.name}.new")
        with writing(self._journal):
            with fresh.open("w", encoding="utf-8") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._journal)
            sync_folder(self._journal.parent)
        self._synced = time.monotonic()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all that was taken in, as it was written."""
        self._file.flush()
        with self.partial.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)

    def remove(self) -> None:
        """Take both files away: the output is whole."""
        self._unlink()
        self._file.close()

    def close(self) -> None:
        """Sync, and let others at it; where nothing was answered, nothing is left to go on from."""
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
        Forget what was answered.

        Args:
            output: The path of the output.

        Raises:
            BackfillError: Another process is writing it.
        """
        partial, journal = cls.paths(output)
        if partial.exists():
            with locked(partial):
                journal.unlink(missing_ok=True)
                partial.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)

    def _unlink(self) -> None:
        self._journal.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)

    def _resume(self) -> None:
        state = self.state(self._output) or {"version": _VERSION, "bytes": 0, "done": []}
        if state["version"] != _VERSION:
            raise BackfillError(f"{self._journal}: is of another release; use --restart")
        if self.partial.stat().st_size < state["bytes"]:
            raise BackfillError(
                f"{self.partial}: is shorter than {self._journal.name} says; use --restart"
            )
        self.done = Spans((first, end) for first, end in state["done"])
        self.failed = state.get("failed", 0)
        end = self._read_on(state["bytes"]) if "about" in state else 0
        # Where nothing was answered nothing is lost, whatever has changed.
        changed = changes(state["about"], self._about) if self.done else ""
        if changed:
            raise BackfillError(
                f"{self._journal}: {changed}; use --restart to begin anew, or name another output"
            )
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def _read_on(self, start: int) -> int:
        """Take in what was answered since the last sync; return where that ends."""
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


def _line(answer: Answered) -> tuple[str, bool]:
    """Return an answer's line, and whether it is that of a row that failed."""
    row = answer.row
    begin = f'{{"position": {row.position}, "key": {quoted(row.key)}, "line": {row.line}, '
    error = answer.error
    if not error:
        try:
            return f'{begin}"output": {_json(answer.output)}}}\n', False
        except (TypeError, ValueError, RecursionError) as flaw:  # it is none of JSON's
            error = f"{type(flaw).__name__}: {flaw}"
    return f'{begin}"error": {quoted(error)}}}\n', True


def _json(value: Any) -> str:
    """Return what kombu's `dumps` returns, with one encoder for all values."""
    return int.__repr__(value) if type(value) is int else _encode(value)
