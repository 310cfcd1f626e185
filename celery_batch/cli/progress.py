"""How far a backfill is, on a terminal or in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from celery_batch.backfill.progress import Progress

__all__ = ["line", "shown"]

#: Seconds between two lines where there is no terminal.
_EVERY = 10.0


@contextmanager
def shown(output: Path) -> Iterator[Callable[[Progress], None]]:
    """
    Show how far a job is: a bar on a terminal, a line now and then elsewhere.

    Args:
        output: What is made; the last line names it.
    """
    last: list[Progress] = []
    with _bar() if sys.stderr.isatty() else _lines() as tell:

        def told(progress: Progress) -> None:
            last[:] = [progress]
            tell(progress)

        yield told
    if last:
        click.echo(f"{output}: {line(last[0])}", err=True)


def line(progress: Progress) -> str:
    """Return how far a job is, in one line."""
    total = f" of {progress.total:,}" if progress.total is not None else ""
    left = f", {progress.left:,.0f} s left" if progress.left else ""
    return (
        f"{progress.done:,}{total} rows, {progress.failed:,} failed,"
        f" {progress.rate:,.0f} a second, {progress.flying:,} on their way{left}"
    )


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
                flying=f"{progress.flying:,} on their way",
            )

        yield tell


def _rich() -> tuple[tuple[str, ...], Any]:
    from rich import progress  # noqa: PLC0415 (only who looks needs it)
    from rich.console import Console  # noqa: PLC0415 (likewise)

    names = ("rate", "failed", "flying")
    columns = [progress.TextColumn(f"{{task.fields[{name}]}}") for name in names]
    bar = progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        *columns,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    return names, bar
