"""A backfill from a file to a file, which goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery_batch.backfill.about import About
from celery_batch.backfill.arguments import Arguments, some_fit
from celery_batch.backfill.backfill import Backfill, Pace
from celery_batch.backfill.changes import changes
from celery_batch.backfill.failures import Failures
from celery_batch.backfill.inputs import Input
from celery_batch.backfill.ledger import Ledger
from celery_batch.backfill.limit import ErrorLimit
from celery_batch.backfill.notices import Notices, Say
from celery_batch.backfill.outputs import format_of, write_output
from celery_batch.backfill.progress import Clock, Progress
from celery_batch.backfill.reins import Reins
from celery_batch.backfill.roll_call import unserved
from celery_batch.backfill.rows import Row
from celery_batch.errors import BackfillComplete, BackfillError

__all__ = ["Job"]

#: Seconds without an answer after which it is asked whether anybody is there.
_QUIET = 10.0

#: Is told how far a job is.
Tell = Callable[[Progress], None]


class Job:
    """
    Rows of an input, answered into an output.

    Args:
        task: The batch task.
        source: The input.
        output: The path of the output, which is there once it is whole.
        arguments: How records become rows.
        limit: How many failures are too many.

    Raises:
        BackfillError: The output would be one of the files of its input, or its format
            cannot be written.
    """

    def __init__(
        self,
        task: Any,
        source: Input,
        output: Path,
        arguments: Arguments,
        *,
        limit: ErrorLimit | None = None,
    ) -> None:
        self._failures = Failures(output)
        self._made = About(output)
        self._kind = format_of(output)
        for path in (output, self._failures.path, self._made.path, *Ledger.paths(output)):
            if source.holds(path):
                raise BackfillError(f"{path}: is read, and would be written; name another output")
        self._task = task
        self._source = source
        self._output = output
        self._arguments = arguments
        self._limit = limit or ErrorLimit()
        #: By these others may steer it.
        self.reins = Reins()
        #: Is told what whoever looks should know at once.
        self.say: Say = lambda _: None

    def run(self, pace: Pace, options: dict[str, Any], tell: Tell) -> Progress:
        """
        Answer every row that has no answer yet, and write the output.

        Args:
            pace: How much travels at once.
            options: Celery's, for each call.
            tell: Called with how far it is, after each turn.

        Raises:
            BackfillComplete: This very backfill was ended before.
            BackfillError: It cannot begin; or too many rows have failed: what was answered
                is kept, and the same command goes on from there.
        """
        if self._output.exists():
            raise self._there_already()
        about = self._about()
        with Ledger(self._output, about) as ledger:
            clock = Clock(ledger, self._source.count())
            progress = self._answer(clock, self._unanswered(ledger), pace, options, tell)
            failed = ledger.records() if ledger.failed else ()  # all is read for them alone
            self._failures.write(failed)  # first: the output says that all is done
            self._made.write({**about, "rows": len(ledger.done)})
            write_output(self._output, ledger.records(), self._kind)
            ledger.remove()
        return progress

    def _there_already(self) -> BackfillError:
        made, about = self._made.read(), self._about()
        anew = "use --restart to begin anew, or name another output"
        if not made:
            nothing = "is there already, and nothing says what it was made of"
            return BackfillError(f"{self._output}: {nothing}; {anew}")
        # An input may have been mended since, but for the rest it is another backfill.
        is_ours = not changes({**made, "input": about["input"]}, about)
        some = "; --retry-errors runs its failed rows again"
        failed = some if is_ours and self._failures.path.exists() else ""
        if not (changed := changes(made, about)):
            return BackfillComplete(f"{self._output}: is complete already{failed}")
        return BackfillError(f"{self._output}: is complete already, but {changed}; {anew}{failed}")

    def retry(self, pace: Pace, options: dict[str, Any], tell: Tell) -> Progress:
        """
        Answer those rows of a whole output again that have failed.

        Args:
            pace: How much travels at once.
            options: Celery's, for each call.
            tell: Called with how far it is, after each turn.

        Raises:
            BackfillError: There is no output, or nothing in it has failed; or a row that has
                failed has another name now.
        """
        keys = self._failures.keys()
        about = self._about()
        made = {**self._made.read(), "input": about["input"]}  # that may have been mended
        if changed := changes(made, about):
            raise BackfillError(f"{self._output}: {changed}; give the same, or use --restart")
        begun = Ledger.state(self._side)
        if begun and changes(begun["about"], about):
            Ledger.forget(self._side)  # the input was mended once more
        with Ledger(self._side, about) as ledger:
            clock = Clock(ledger, len(keys))
            progress = self._answer(clock, self._failed(ledger, keys), pace, options, tell)
            merged = self._failures.merged
            write_output(self._output, merged(ledger.records()), self._kind)
            self._failures.write(merged(ledger.records()))
            self._made.write({**made, **about})
            ledger.remove()
        return progress

    def forget(self) -> None:
        """
        Forget what an earlier run has answered, its output too.

        Raises:
            BackfillError: Another process is at it.
        """
        for output in (self._output, self._side):
            Ledger.forget(output)
        for path in (self._output, self._failures.path, self._made.path):
            path.unlink(missing_ok=True)

    @property
    def _side(self) -> Path:
        """What stands for the output while its failed rows run again."""
        return self._output.with_name(f"{self._output.name}.retry")

    def _answer(
        self, clock: Clock, rows: Iterator[Row], pace: Pace, options: dict[str, Any], tell: Tell
    ) -> Progress:
        notices, has_asked = Notices(self._arguments, self.say), False
        with Backfill(self._task, rows, pace, options) as backfill:
            while not backfill.is_over:
                self.reins.check()
                is_paused = self.reins.is_paused
                answers = backfill.turn(sends=not is_paused)
                clock.ledger.add(answers)
                notices.look(answers)
                state = "paused" if is_paused else "running"
                progress = clock.progress(**backfill.facts(), state=state)
                tell(progress)
                self._limit.check(progress.done, progress.failed)
                if not has_asked and progress.flying and progress.silent > _QUIET:
                    has_asked = True
                    if words := unserved(self._task, options):
                        self.say(words)
        progress = clock.progress(state="writing")
        tell(progress)
        return progress

    def _failed(self, ledger: Ledger, keys: dict[int, str]) -> Iterator[Row]:
        for row in self._unanswered(ledger):
            if row.position in keys:
                if keys[row.position] not in (row.key, str(row.position + 1)):
                    raise BackfillError(
                        f"{row.place} is {row.key!r} now, and the one that failed was"
                        f" {keys[row.position]!r}: this is another input"
                    )
                yield row

    def _unanswered(self, ledger: Ledger) -> Iterator[Row]:
        for row in some_fit(self._arguments.rows(self._source.records(), self._source.line)):
            if row.position not in ledger.done:
                yield row

    def _about(self) -> dict[str, Any]:
        how = {"format": self._source.kind, **self._arguments.options()}
        return {"task": self._task.name, "input": self._source.identity, **how}
