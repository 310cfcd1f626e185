"""What several commands share: task names, rows, durations, lines of text, plots."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

import click

from celery_batch.backfill.inputs import Arguments, Input, some_fit
from celery_batch.batches import Batches, takes_no_rows
from celery_batch.errors import BackfillError, BatchError, ConfigurationError
from celery_batch.formatting import did_you_mean
from celery_batch.items.functions import item_cost_of
from celery_batch.task import BatchTask
from celery_batch.worker.scheduling.routing import batch_tasks

__all__ = [
    "FOCUS",
    "LIMIT",
    "PLAIN",
    "POSITIVE",
    "FiniteRange",
    "Row",
    "at_most_every",
    "batch_task",
    "check_plot",
    "duration",
    "finish_axes",
    "leave_out_costly",
    "plot_option",
    "plotted",
    "rows_of_file",
    "say_left_out",
    "wrapped",
]

#: The values of a call's parameters.
Row: TypeAlias = tuple[Any, ...]

#: Rows of a file that are kept to measure with.
_MOST_ROWS = 10_000

#: Red and greys differ in lightness too, and lines in their marks: for colour-blind readers.
FOCUS, PLAIN, LIMIT = "#b03a2e", "#566573", "#7f8c8d"

_KINDS = (".png", ".svg", ".pdf")

plot_option = click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the result to a .png, .svg or .pdf file; needs matplotlib.",
)


class FiniteRange(click.FloatRange):
    """A range of numbers that has neither infinity nor NaN in it."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number that was given."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found}: must be a finite number", param, ctx)
        return found


#: An option's number above 0.
POSITIVE = FiniteRange(min=0, min_open=True)


def batch_task(app: Any, name: str) -> BatchTask:
    """Find a batch task of an app."""
    app.loader.import_default_modules()
    app.finalize()
    known = [task.name for task in batch_tasks(app)]
    if name in known:
        if isinstance(app.tasks[name], Batches):
            raise takes_no_rows(app.tasks[name])
        return app.tasks[name]  # type: ignore[no-any-return]
    names = ", ".join(known) or "none"
    if name in app.tasks:
        raise ConfigurationError(
            f"{name}: is an ordinary task, made without base=BatchTask; this app's batch tasks:"
            f" {names}"
        )
    raise ConfigurationError(
        f"{name}: is no batch task of this app; there are: {names}{did_you_mean(name, known)}"
    )


def rows_of_file(task: BatchTask, source: str, field: str | None = None) -> list[Row]:
    """Return the rows of a file that fit a task, the first of them if they are many."""
    found = Input(source)
    field = field or ("file" if found.kind == "files" else None)
    records = islice(found.records(), _MOST_ROWS)
    made = Arguments(task._batch_signature, field=field).rows(records, lambda: found.line)
    read = [*some_fit(made)]
    rows = [row.values for row in read if not row.flaw]
    say_left_out(len(read) - len(rows), len(read), "do not fit the task")
    if not rows:
        raise ConfigurationError(f"{source}: has no rows to measure with")
    return rows


def leave_out_costly(task: BatchTask, rows: list[Row]) -> None:
    """Remove the rows that cost more than the task takes, or that have no cost."""
    item_cost = item_cost_of(task)
    if item_cost is not None:
        costs = item_cost.of_rows([*zip(*rows, strict=True)])
        errors = [each for each in costs if isinstance(each, BatchError)]
        if len(errors) == len(rows):
            raise BackfillError(f"no row fits the task: {errors[0]}") from errors[0]
        pairs = zip(rows, costs, strict=True)
        rows[:] = [row for row, cost in pairs if not isinstance(cost, BatchError)]


def say_left_out(count: int, total: int, why: str) -> None:
    """Print on standard error how many rows are left out, if any."""
    if count:
        click.echo(f"{count:,} of {total:,} rows {why}, and are left out", err=True)


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Return a text in lines of so many characters; options and paths in it stay whole."""
    return fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def at_most_every(seconds: float, show: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return a function that shows what it is called with, but not more often than this."""
    shown_at = time.monotonic()

    def show_sometimes(value: Any) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= seconds:
            shown_at = time.monotonic()
            show(value)

    return show_sometimes


def duration(seconds: float) -> str:
    """Return a time in its two largest units, or part of a second."""
    if 0 < seconds < 1:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def check_plot(path: Path) -> None:
    """Raise ConfigurationError if no plot can be written there: before minutes of measuring."""
    if path.suffix.lower() not in _KINDS:
        raise ConfigurationError(f"--plot: {path}: must end in one of {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--plot: {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"--plot: {path}: cannot be written: permission denied")
    try:
        import_module("matplotlib")
    except ImportError:
        raise ConfigurationError(
            "--plot needs matplotlib: pip install matplotlib, or leave it out"
        ) from None


@contextmanager
def plotted(path: Path, title: str) -> Iterator[tuple[Any, Any]]:
    """Give the axes of the left and the right picture, and write them to a file."""
    import matplotlib as mpl  # noqa: PLC0415 (an extra)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (an extra)

    both, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    try:
        yield left, right
        both.suptitle(title, fontsize=11)
        both.tight_layout()
        metadata = {".svg": {"Date": None}, ".png": {"Software": None}}  # the same file each time
        both.savefig(path, dpi=120, metadata=metadata.get(path.suffix.lower()))
    finally:
        plt.close(both)


def finish_axes(axes: Any) -> None:
    """Give axes the frame, the labels' size and the legend of all plots."""
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, edgecolor="none", framealpha=1.0, loc="upper left")
