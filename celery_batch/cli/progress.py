"""How far a backfill is, on a terminal or in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from celery_batch.backfill.progress import Progress
from celery_batch.cli.common import at_most_every, duration

__all__ = ["echo", "line", "shown", "summary"]

#: Seconds between two lines where there is no terminal.
_EVERY = 10.0

#: Seconds without an answer after which that is shown.
_NO_ANSWER = 10.0


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
    if progress.pending and progress.since_answer > _NO_ANSWER:
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
