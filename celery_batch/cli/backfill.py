"""``celery batch backfill``: many rows through a serving task, from a file to a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click
from celery.bin.base import CeleryCommand

from celery_batch.backfill.control import JobControl
from celery_batch.backfill.engine import limits_of, lowest_priority
from celery_batch.backfill.inputs import FORMATS, Arguments, Input
from celery_batch.backfill.job import ErrorLimit, Job
from celery_batch.backfill.progress import NO_ANSWER, Progress
from celery_batch.backfill.window import TIMEOUT, WINDOW_BYTES
from celery_batch.cli.common import at_most_every, batch_task, duration
from celery_batch.cli.errors import INTERRUPTED, errors_in_one_line
from celery_batch.compat.gc import collect_less_often, freeze_existing
from celery_batch.errors import BackfillComplete, BackfillError, BackfillStopped

__all__ = ["backfill", "echo", "line", "shown", "summary"]


@click.command(name="backfill", cls=CeleryCommand)
@click.argument("task")
@click.option(
    "--input",
    "source",
    required=True,
    help="A .jsonl, .csv, .parquet or .npy file, a folder of files, or - for JSON lines of stdin.",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .jsonl, .csv, .parquet or .npy file.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*FORMATS]),
    show_default="by the suffix",
    help="The format of the input.",
)
@click.option("--key", show_default="id or key", help="The field that names a record.")
@click.option("--field", help="The field that is the task's only argument.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    show_default="all",
    help="Run only the first N rows of the input, those included that an earlier run has"
    " answered.  The same command goes on up to the same row; another limit needs --restart or"
    " another output.",
    metavar="N",
)
@click.option("--queue", show_default="the task's", help="The queue of the messages.")
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    show_default="the lowest",
    help="The priority of the messages.",
)
@click.option(
    "--window",
    type=click.IntRange(min=1),
    show_default="32 batches, or 4 for each worker",
    help="The most rows that are pending at once.",
)
@click.option(
    "--window-bytes",
    type=click.IntRange(min=1),
    default=WINDOW_BYTES,
    show_default=True,
    help="Bytes of pending rows above which nothing more is sent.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    help="Seconds without any answer after which lost rows are sent again.",
)
@click.option("--as-completed", is_flag=True, help="Write answers as they come, in any order.")
@click.option(
    "--max-errors",
    show_default="no limit",
    help="Stop when more rows than this number, or than this share (5%), have failed.",
)
@click.option("--retry-errors", is_flag=True, help="Run the failed rows of an output again.")
@click.option("--restart", is_flag=True, help="Remove what an earlier run has answered.")
@click.pass_context
@errors_in_one_line
def backfill(ctx: click.Context, /, task: str, source: str, output: Path, **options: Any) -> None:
    """
    Run every row of a file through TASK.

    The rows are those of --input, and their outputs become those of --output.
    After any interruption the same command continues.
    Exit code: 0 if every row has an output, now or before; 1 if rows have failed, now or before,
    or it could not start; 2 if an option is wrong; 130 if it was interrupted.
    """
    _interrupt_on_signals()
    try:
        progress = _run(ctx.obj.app, task, source, output, options)
    except (KeyboardInterrupt, BackfillStopped) as error:
        ended = "Stopped" if isinstance(error, BackfillStopped) else "Interrupted"
        same = "the same command without --restart" if options["restart"] else "the same command"
        click.echo(f"{ended}; {same} continues from here.", err=True)
        ctx.exit(INTERRUPTED)
    except BackfillComplete as error:
        click.echo(str(error), err=True)
        ctx.exit(1 if error.failed else 0)
    ctx.exit(1 if progress.failed else 0)


def _run(app: Any, name: str, source: str, output: Path, options: dict[str, Any]) -> Progress:
    task = batch_task(app, name)
    found = Input(source, options["kind"] or "", options["limit"])
    field = options["field"] or ("file" if found.kind == "files" else None)
    job = Job(
        task,
        found,
        output,
        Arguments(task._batch_signature, key=options["key"], field=field),
        limits=limits_of(
            task,
            window=options["window"],
            in_order=not options["as_completed"],
            window_bytes=options["window_bytes"],
            patience=options["patience"],
        ),
        options=_call_options(app, options),
        error_limit=ErrorLimit.parse(options["max_errors"]),
        echo=echo,
    )
    if options["restart"]:
        if options["retry_errors"]:
            raise BackfillError("--restart forgets what --retry-errors needs; give one of them")
        job.forget()
    run = job.retry if options["retry_errors"] else job.run
    with shown() as show, JobControl(app, name, source, output) as control:
        freeze_existing()
        collect_less_often()
        progress = run(control, show)
    echo(summary(output, progress))
    return progress


def _call_options(app: Any, options: dict[str, Any]) -> dict[str, Any]:
    priority = lowest_priority(app) if options["priority"] is None else options["priority"]
    queue = {"queue": options["queue"]} if options["queue"] else {}
    return {"priority": priority, **queue}


def _interrupt_on_signals() -> None:
    """End as after Ctrl-C on SIGTERM, and when the terminal is closed without nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Say at once that the command stops: to revoke calls takes seconds if the broker hangs."""
    os.write(2, b"Stopping ...\n")  # a signal may come while `sys.stderr` is being written
    raise KeyboardInterrupt


#: Seconds between two lines where there is no terminal.
_EVERY = 10.0


def shown() -> AbstractContextManager[Callable[[Progress], None]]:
    """Return what shows how far a job is: a bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty() and find_spec("rich") is not None:
        return _bar()
    return nullcontext(at_most_every(_EVERY, lambda progress: echo(line(progress))))


def echo(text: str) -> None:
    """Print a line, above the bar if there is one."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 (rich redirects this, and not click's)


def line(progress: Progress) -> str:
    """Return how far a job is, in one line."""
    total = f" of {progress.total:,}" if progress.total is not None else ""
    words = [
        f"{progress.done:,}{total} rows",
        f"{progress.failed:,} failed",
        f"{progress.rate:,.0f} a second",
        *_pending(progress),
        *([f"{duration(progress.left)} left"] if progress.left else []),
    ]
    state = "" if progress.state == "running" else f"{progress.state}: "
    return state + ", ".join(words)


def summary(output: Path, progress: Progress) -> str:
    """Return how a job has ended, in one line."""
    done = progress.done - progress.resumed
    words = [
        f"{progress.done:,} rows, {progress.failed:,} failed",
        *([f"{progress.resumed:,} answered before"] if progress.resumed else []),
        f"{done:,} in {duration(progress.seconds)}, {progress.average:,.0f} a second",
        *([f"paused for {duration(progress.paused)}"] if progress.paused >= 1 else []),
    ]
    errors = [f"see {output.name}.errors"] if progress.failed else []
    return f"{output}: {'; '.join(words + errors)}"


def _pending(progress: Progress) -> list[str]:
    """Return how many rows are pending, and in how many workers."""
    words = [f"{progress.pending:,} of {progress.window:,} pending"] if progress.window else []
    if progress.workers:
        words.append(f"{progress.workers:,} worker" + "s" * (progress.workers > 1))
    if progress.pending and progress.since_answer > NO_ANSWER:
        words.append(f"no answer for {duration(progress.since_answer)}")
    return words


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    from rich import progress as bars  # noqa: PLC0415 (only a terminal needs it)
    from rich.console import Console  # noqa: PLC0415 (likewise)

    with bars.Progress(
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.description}"),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        row = bar.add_task("", total=None)

        def show(progress: Progress) -> None:
            words = [
                f"{progress.rate:,.0f}/s",
                f"{progress.failed:,} failed",
                *_pending(progress),
                *([progress.state] if progress.state != "running" else []),
            ]
            description = ", ".join(words)
            bar.update(row, completed=progress.done, total=progress.total, description=description)

        yield show
