"""How far a backfill is, on a terminal or in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from celery_batch.backfill.progress import Progress
from celery_batch.cli.common import duration

__all__ = ["line", "say", "shown", "summary"]

#: Seconds between two lines where there is no terminal.
_EVERY = 10.0

#: Seconds without an answer after which that is told.
_LONG = 10.0


@contextmanager
def shown(output: Path) -> Iterator[Callable[[Progress], None]]:
    """
    Show how far a job is: a bar on a terminal, a line now and then elsewhere.

    Args:
        output: What is made; the last line names it.
    """
    last: list[Progress] = []
    has_bar = sys.stderr.isatty() and find_spec("rich") is not None
    with _bar() if has_bar else _lines() as tell:

        def told(progress: Progress) -> None:
            last[:] = [progress]
            tell(progress)

        yield told
    if last:
        named = f"; see {output.name}.errors" if last[0].failed else ""
        click.echo(f"{output}: {summary(last[0])}{named}", err=True)


def say(text: str) -> None:
    """Show a line that stays, above the bar if there is one."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 (the bar takes this, and not click's)


def line(progress: Progress) -> str:
    """Return how far a job is, in one line."""
    total = f" of {progress.total:,}" if progress.total is not None else ""
    words = [
        f"{progress.done:,}{total} rows",
        f"{progress.failed:,} failed",
        f"{progress.rate:,.0f} a second",
        *_way(progress),
        *([f"{duration(progress.left)} left"] if progress.left else []),
    ]
    state = "" if progress.state == "running" else f"{progress.state}: "
    return state + ", ".join(words)


def summary(progress: Progress) -> str:
    """Return what came of a job, in one line."""
    done = progress.done - progress.resumed
    words = [
        f"{progress.done:,} rows, {progress.failed:,} failed",
        *([f"{progress.resumed:,} answered before"] if progress.resumed else []),
        f"{done:,} in {duration(progress.seconds)}, {progress.average:,.0f} a second",
        *([f"paused for {duration(progress.paused)}"] if progress.paused >= 1 else []),
    ]
    return "; ".join(words)


def _way(progress: Progress) -> list[str]:
    """Return what is on its way, and to whom."""
    words = [f"{progress.flying:,} of {progress.window:,} on their way"] if progress.window else []
    if progress.workers:
        words.append(f"{progress.workers:,} worker" + "s" * (progress.workers > 1))
    if progress.flying and progress.silent > _LONG:
        words.append(f"no answer for {duration(progress.silent)}")
    return words


@contextmanager
def _lines() -> Iterator[Callable[[Progress], None]]:
    said = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= _EVERY:
            said = time.monotonic()
            click.echo(line(progress), err=True)

    yield tell


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    columns, bar = _rich()
    with bar:
        row = bar.add_task("", total=None, **dict.fromkeys(columns, ""))

        def tell(progress: Progress) -> None:
            bar.update(
                row,
                completed=progress.done,
                total=progress.total,
                rate=f"{progress.rate:,.0f}/s",
                failed=f"{progress.failed:,} failed",
                way=", ".join(_way(progress)),
                state="" if progress.state == "running" else progress.state,
            )

        yield tell


def _rich() -> tuple[tuple[str, ...], Any]:
    from rich import progress  # noqa: PLC0415 (only who looks needs it)
    from rich.console import Console  # noqa: PLC0415 (likewise)

    names = ("rate", "failed", "way", "state")
    columns = [progress.TextColumn(f"{{task.fields[{name}]}}") for name in names]
    bar = progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        *columns,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    return names, bar
