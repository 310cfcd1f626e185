"""A backfill from a file to a file, which goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, Self

from celery_batch.backfill.checkpoint import Checkpoint, Failures, OutputDescription, changes
from celery_batch.backfill.control import JobControl
from celery_batch.backfill.engine import Backfill, Pace
from celery_batch.backfill.inputs import Arguments, Input, some_fit
from celery_batch.backfill.outputs import format_of, write_output
from celery_batch.backfill.progress import Clock, Progress
from celery_batch.backfill.sender import unserved
from celery_batch.backfill.window import Answered, Row
from celery_batch.errors import BackfillComplete, BackfillError

__all__ = [
    "ErrorLimit",
    "Job",
    "Notices",
    "Say",
    "check_options",
]


#: Rows after which a share of them says something.
_ENOUGH = 100


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """
    The most rows that may fail before a hopeless job stops.

    Args:
        count: So many; None for any number.
        share: Of all rows that have come to their end, from 0 to 1; None for any share.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Read ``"100"`` or ``"5%"``.

        Raises:
            BackfillError: It is neither.
        """
        digits = text.strip()
        try:
            if digits.endswith("%"):
                share = float(digits[:-1]) / 100
                if 0 <= share <= 1:
                    return cls(share=share)
            elif int(digits) >= 0:
                return cls(count=int(digits))
        except ValueError:
            pass
        raise BackfillError(f"--max-errors: must be a number or a percentage, got {text!r}")

    def check(self, done: int, failed: int) -> None:
        """
        Do nothing while few enough rows have failed.

        Raises:
            BackfillError: There are more than that.
        """
        over = self.count is not None and failed > self.count
        if self.share is not None and done >= _ENOUGH:
            over = over or failed > self.share * done
        if over:
            raise BackfillError(
                f"{failed:,} of {done:,} rows have failed, more than --max-errors allows;"
                " what was answered is kept, and the same command goes on if it allows more"
            )


#: Is told a line.
Say = Callable[[str], None]


#: Kinds of errors of which the first one is shown.
_KINDS = 5


#: Characters of an error that is shown.
_LONG = 200


#: Rows at the beginning which should not all fail.
_FIRST = 100


#: Names of rows that are remembered to find the same one twice.
_NAMES = 100_000


class Notices:
    """
    Looks at answers as they come, and says what is strange about them.

    Args:
        arguments: How records became rows.
        say: Is told a line.
    """

    def __init__(self, arguments: Arguments, say: Say) -> None:
        self._arguments = arguments
        self._say = say
        self._seen = self._failed = 0
        self._kinds: set[str] = set()
        self._names: set[str] = set()
        self._knows_twins = self._has_hinted = False

    def look(self, answers: Iterable[Answered]) -> None:
        """Look at answers, each once."""
        for answer in answers:
            self._seen += 1
            if answer.error:
                self._failed += 1
                self._show(answer)
            if not (self._knows_twins or len(self._names) == _NAMES):
                self._look_for_twin(answer.row)
            if self._seen == self._failed == _FIRST:
                self._say(
                    f"The first {_FIRST} rows have all failed; Ctrl-C ends it, and --restart"
                    " begins anew once that is mended."
                )

    def _show(self, answer: Answered) -> None:
        kind = answer.error.partition(":")[0]
        if kind in self._kinds or len(self._kinds) == _KINDS:
            return
        self._kinds.add(kind)
        text = " ".join(answer.error.split())
        text = text if len(text) <= _LONG else f"{text[:_LONG]}..."
        self._say(f"{_named(answer.row)} failed: {text}")
        hint = self._arguments.hint(answer.row)
        if hint and self._failed == self._seen and not self._has_hinted:
            self._has_hinted = True
            self._say(hint)

    def _look_for_twin(self, row: Row) -> None:
        if row.key in self._names:
            self._knows_twins = True
            self._names.clear()
            self._say(f"More than one row is named {row.key!r}; --key names them by another field.")
        self._names.add(row.key)


def _named(row: Row) -> str:
    place = row.place.capitalize()
    return place if row.key == str(row.position + 1) else f"{place} ({row.key})"


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
        self._made = OutputDescription(output)
        self._kind = format_of(output)
        for path in (output, self._failures.path, self._made.path, *Checkpoint.paths(output)):
            if source.holds(path):
                raise BackfillError(f"{path}: is read, and would be written; name another output")
        self._task = task
        self._source = source
        self._output = output
        self._arguments = arguments
        self._limit = limit or ErrorLimit()
        #: By these others may steer it.
        self.job_control = JobControl()
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
        with Checkpoint(self._output, about) as ledger:
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
        begun = Checkpoint.state(self._side)
        if begun and changes(begun["about"], about):
            Checkpoint.forget(self._side)  # the input was mended once more
        with Checkpoint(self._side, about) as ledger:
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
            Checkpoint.forget(output)
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
                self.job_control.check()
                is_paused = self.job_control.is_paused
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

    def _failed(self, ledger: Checkpoint, keys: dict[int, str]) -> Iterator[Row]:
        for row in self._unanswered(ledger):
            if row.position in keys:
                if keys[row.position] not in (row.key, str(row.position + 1)):
                    raise BackfillError(
                        f"{row.place} is {row.key!r} now, and the one that failed was"
                        f" {keys[row.position]!r}: this is another input"
                    )
                yield row

    def _unanswered(self, ledger: Checkpoint) -> Iterator[Row]:
        for row in some_fit(self._arguments.rows(self._source.records(), self._source.line)):
            if row.position not in ledger.done:
                yield row

    def _about(self) -> dict[str, Any]:
        how = {"format": self._source.kind, **self._arguments.options()}
        return {"task": self._task.name, "input": self._source.identity, **how}


#: What `backfill` takes itself.
_OWN = ("window", "in_order")


#: What Celery and kombu read that `send_task` does not name.
_PASSED_ON = (
    *("queue", "exchange", "exchange_type", "routing_key", "priority", "delivery_mode"),
    *("serializer", "compression", "content_type", "content_encoding", "headers"),
    *("stamped_headers", "argsrepr", "kwargsrepr", "ignore_result", "origin", "expiration"),
    *("retry", "retry_policy", "declare", "mandatory", "immediate", "timeout", "confirm_timeout"),
    *("message_id", "correlation_id", "user_id", "app_id", "type", "timestamp"),
)


#: What `send_task` names that is not the same for all calls of a backfill.
_OF_EACH = ("name", "args", "kwargs", "task_id", "result_cls")


def check_options(app: Any, options: Iterable[str]) -> None:
    """
    Do nothing if all of these are options of a call.

    Args:
        app: The Celery app.
        options: Their names.

    Raises:
        TypeError: One is none, with the one that was meant; or each call has its own.
    """
    known = {*_OWN, *_PASSED_ON, *signature(app.send_task).parameters}
    for name in options:
        if name in _OF_EACH:
            raise TypeError(f"backfill() takes no option {name!r}: each call has its own")
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"backfill() takes no option {name!r}{hint}")
