"""A backfill from a file to a file, which goes on where it was interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

from celery_batch.backfill.checkpoint import (
    Checkpoint,
    Failures,
    about_path,
    changes,
    read_about,
    write_about,
)
from celery_batch.backfill.control import JobControl
from celery_batch.backfill.engine import Backfill
from celery_batch.backfill.inputs import Arguments, Input, hint_of, some_fit
from celery_batch.backfill.npy import ArrayRows
from celery_batch.backfill.outputs import format_of, write_output
from celery_batch.backfill.progress import NO_ANSWER, Clock, Progress
from celery_batch.backfill.sender import unserved
from celery_batch.backfill.window import Answer, Limits, Row
from celery_batch.errors import BackfillComplete, BackfillError

__all__ = ["ErrorLimit", "Job", "Notices"]

#: Rows after which a share of them means something.
_ENOUGH = 100

#: Kinds of errors of which the first one is shown.
_KINDS = 5

#: Characters of an error that is shown.
_ERROR_LENGTH = 200

#: Rows at the beginning of which not all should fail.
_FIRST = 100


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """The most rows that may fail before a job stops."""

    count: float = math.inf
    share: float = 1.0  # of all rows that were answered, from 0 to 1

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read ``"100"`` or ``"5%"``; without a text there is no limit."""
        if not text:
            return cls()
        digits = text.strip()
        try:
            is_share = digits.endswith("%")
            limit = cls(share=float(digits[:-1]) / 100) if is_share else cls(count=int(digits))
        except ValueError:
            limit = cls(count=-1)
        if not (limit.count >= 0 and 0 <= limit.share <= 1):
            raise BackfillError(f"--max-errors: must be a number or a percentage, got {text!r}")
        return limit

    def check(self, done: int, failed: int) -> None:
        """Raise BackfillError if more rows have failed."""
        if failed > self.count or (done >= _ENOUGH and failed > self.share * done):
            raise BackfillError(
                f"{failed:,} of {done:,} rows have failed, more than --max-errors allows;"
                " the outputs are kept, and the same command continues if it allows more"
            )


class Notices:
    """Prints the first error of each kind, and what is unusual about the answers."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._seen = self._failed = 0
        self._kinds: set[str] = set()
        self._has_hinted = False

    def add(self, answers: Iterable[Answer]) -> None:
        """Look at answers, each once."""
        for answer in answers:
            self._seen += 1
            if answer.error:
                self._failed += 1
                self._show(answer)
            if self._seen == self._failed == _FIRST:
                self._echo(
                    f"The first {_FIRST} rows have all failed; Ctrl-C ends it, and --restart"
                    " begins anew once that is mended."
                )

    def _show(self, answer: Answer) -> None:
        kind, title = answer.error.partition(":")[0], answer.row.title
        if kind in self._kinds or len(self._kinds) == _KINDS:
            return
        self._kinds.add(kind)
        text = " ".join(answer.error.split())
        text = text if len(text) <= _ERROR_LENGTH else f"{text[:_ERROR_LENGTH]}..."
        self._echo(f"{title[:1].upper()}{title[1:]} failed: {text}")
        hint = hint_of(answer.row)
        if hint and self._failed == self._seen and not self._has_hinted:
            self._has_hinted = True
            self._echo(hint)


class Job:
    """Rows of an input, answered into an output."""

    def __init__(
        self,
        task: Any,
        source: Input,
        output: Path,
        arguments: Arguments,
        *,
        limits: Limits,
        options: dict[str, Any],
        error_limit: ErrorLimit,
        echo: Callable[[str], None],
    ) -> None:
        self._failures = Failures(output)
        self._kind = format_of(output)
        for path in (output, self._failures.path, about_path(output), Checkpoint.path(output)):
            if source.holds(path):
                raise BackfillError(f"{path}: is read, and would be written; name another output")
        self._task, self._source, self._output = task, source, output
        self._arguments, self._limits, self._options = arguments, limits, options
        self._error_limit, self._echo = error_limit, echo
        self._array_rows: ArrayRows | None = None
        #: Stands for the output while its failed rows run again.
        self._retry_output = output.with_name(f"{output.name}.retry")

    def run(self, control: JobControl, show: Callable[[Progress], None]) -> Progress:
        """Answer every row that has no answer yet, and write the output."""
        if self._output.exists():
            raise self._there_already()
        about = self._about()
        with Checkpoint(self._output, about) as checkpoint:
            rows = self._unanswered(checkpoint)
            self._array_rows = self._rows_like(checkpoint.records())
            progress = self._answer(checkpoint, rows, self._source.count(), control, show)
            failed = checkpoint.records() if checkpoint.failed else ()
            self._failures.write(failed)  # first: the output says that all is done
            write_about(self._output, {**about, "rows": len(checkpoint.done)})
            self._write(checkpoint.records)
            checkpoint.remove()
        return progress

    def _there_already(self) -> BackfillError:
        made, about = read_about(self._output), self._about()
        anew = "use --restart to start anew, or name another output"
        if not made:
            nothing = "is there already, and nothing says what it was made of"
            return BackfillError(f"{self._output}: {nothing}; {anew}")
        # An input may have been mended since, but for the rest it is another backfill.
        is_ours = not changes({**made, "input": about["input"]}, about)
        failed = self._failures.count()
        rows = "1 failed row" if failed == 1 else f"{failed:,} failed rows"
        hint = f"; --retry-errors runs its {rows} again" if is_ours and failed else ""
        if not (changed := changes(made, about)):
            return BackfillComplete(f"{self._output}: is complete already{hint}", failed=failed)
        return BackfillError(f"{self._output}: is complete already, but {changed}; {anew}{hint}")

    def retry(self, control: JobControl, show: Callable[[Progress], None]) -> Progress:
        """Answer those rows of a whole output again that have failed."""
        keys = self._failures.keys()
        about = self._about()
        made = {**read_about(self._output), "input": about["input"]}  # that may have been mended
        if changed := changes(made, about):
            raise BackfillError(f"{self._output}: {changed}; give the same, or use --restart")
        begun, *_ = Checkpoint.state(self._retry_output)
        if changes(begun, about):
            Checkpoint.forget(self._retry_output)  # the input was mended once more
        with Checkpoint(self._retry_output, about) as checkpoint:

            def merged() -> Iterator[dict[str, Any]]:
                return self._failures.merged(checkpoint.records())

            rows = self._failed(checkpoint, keys)
            before = chain(self._failures.merged(()), checkpoint.records())
            self._array_rows = self._rows_like(before)
            progress = self._answer(checkpoint, rows, len(keys), control, show)
            self._write(merged)
            self._failures.write(merged())
            write_about(self._output, {**made, **about})
            checkpoint.remove()
        return progress

    def forget(self) -> None:
        """Remove what an earlier run has answered, its output too."""
        for output in (self._output, self._retry_output):
            Checkpoint.forget(output)
        for path in (self._output, self._failures.path, about_path(self._output)):
            path.unlink(missing_ok=True)

    def _rows_like(self, records: Iterable[dict[str, Any]]) -> ArrayRows | None:
        """Return rows of an array like those of records; None for an output of another format."""
        return ArrayRows(self._output, records) if self._kind == "npy" else None

    def _write(self, read: Callable[[], Iterator[dict[str, Any]]]) -> None:
        write_output(self._output, read, self._kind, self._array_rows)

    def _answer(
        self,
        checkpoint: Checkpoint,
        rows: Iterator[Row],
        total: int | None,
        control: JobControl,
        show: Callable[[Progress], None],
    ) -> Progress:
        notices, has_asked = Notices(self._echo), False
        clock = Clock(total, len(checkpoint.done), checkpoint.failed)
        array_rows = self._array_rows

        def save(answers: list[Answer]) -> int:
            if array_rows is not None:
                answers = [array_rows.checked(answer) for answer in answers]
            failed = checkpoint.add(answers)
            notices.add(answers)
            return failed

        with Backfill(self._task, rows, self._limits, self._options) as backfill:
            for _ in control.steps(backfill, clock, save):
                progress = control.progress
                show(progress)
                self._error_limit.check(progress.done, progress.failed)
                if not has_asked and progress.pending and progress.since_answer > NO_ANSWER:
                    has_asked = True
                    if words := unserved(self._task, self._options):
                        self._echo(words)
        control.progress = clock.progress(state="writing")
        show(control.progress)
        return control.progress

    def _failed(self, checkpoint: Checkpoint, keys: dict[int, str]) -> Iterator[Row]:
        for row in self._unanswered(checkpoint):
            if row.position in keys:
                if keys[row.position] not in (row.key, str(row.position + 1)):
                    raise BackfillError(
                        f"{row.place} is {row.key!r} now, and the one that failed was"
                        f" {keys[row.position]!r}: this is another input"
                    )
                yield row

    def _unanswered(self, checkpoint: Checkpoint) -> Iterator[Row]:
        source = self._source
        for row in some_fit(self._arguments.rows(source.records(), lambda: source.line)):
            if row.position not in checkpoint.done:
                yield row

    def _about(self) -> dict[str, Any]:
        return {
            "task": self._task.name,
            "input": self._source.identity,
            "format": self._source.kind,
            "key": self._arguments.key,
            "field": self._arguments.field,
            "limit": self._source.limit,
        }
