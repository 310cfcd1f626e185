"""``celery batch tune``: what a model takes, and which settings that speaks for."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli.task_name import batch_task
from celery_batch.cli.tune_model import Probe, rows_for
from celery_batch.cli.tune_plot import Plot
from celery_batch.cli.tune_table import as_data, show
from celery_batch.config import LARGEST_BATCH
from celery_batch.errors import BatchError, ConfigurationError
from celery_batch.serving import residents
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.measure import Plan, measure
from celery_batch.tuning.propose import Goal, propose
from celery_batch.worker.loading import load_models

__all__ = ["tune"]

#: Seconds between two lines of progress in a log or a pipe.
_QUIET = 5.0

#: Powers of two up to the largest batch that may be set.
_SIZES = tuple(1 << n for n in range(LARGEST_BATCH.bit_length()) if 1 << n <= LARGEST_BATCH)


@click.command(name="tune", cls=CeleryCommand)
@click.argument("task")
@click.option(
    "--latency",
    type=click.FloatRange(min=0, min_open=True),
    default=0.1,
    show_default=True,
    help="Seconds in which 99 of 100 requests are to have their answers.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests a second that one process is to expect; most of what it can bear unless given.",
)
@click.option("--input", "source", help="Rows to measure with: a file, a folder, or - for stdin.")
@click.option("--field", help="The field that is the task's only argument.")
@click.option("--sizes", help="What to measure, as in 1,8,32; growing unless given.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="How long each size is measured for, about.",
)
@click.option(
    "--way",
    type=click.FloatRange(min=0),
    default=0.003,
    show_default=True,
    help="Seconds that a message and its answer are on their way.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: a .png, .svg or .pdf."
)
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
@click.option("--device", help="Such as cuda:1 or cpu; the first of batch_devices unless given.")
@click.pass_context
def tune(ctx: click.Context, /, task: str, plot: Path | None, **options: Any) -> None:
    """
    Measure TASK's model at growing batch sizes, and propose settings for it.

    The model is loaded here, on its device: no broker is asked and no worker is
    needed, and one that uses the same device had better rest meanwhile.
    """
    goal = Goal(options["latency"], options["rate"])
    try:
        picture = Plot(plot) if plot is not None else None  # refused before the work, not after
        with _progress() as tell:
            device, curve = _measured(ctx.obj.app, task, goal, options, tell)
            proposal = propose(curve, goal, tell)
        if options["is_json"]:
            click.echo(json.dumps(as_data(task, device, curve, proposal), indent=2))
        else:
            show(task, device, curve, proposal)
        if picture is not None:
            picture.draw(task, device, curve, proposal)
    except BatchError as error:
        raise click.ClickException(str(error)) from error


def _measured(
    app: Any, name: str, goal: Goal, options: dict[str, Any], tell: Callable[[str], None]
) -> tuple[str, Curve]:
    task = batch_task(app, name)
    plan = Plan(
        _sizes(options["sizes"]),
        options["seconds"],
        goal.latency,
        asked_for=options["sizes"] is not None,
    )
    if options["device"]:
        app.conf.batch_devices = options["device"]
    with _without_advice():
        tell("loading")
        try:
            device = load_models(app, [name])
            rows = rows_for(task, options["source"], options["field"])
            return device, replace(measure(Probe(task, rows), plan, tell), way=options["way"])
        finally:
            residents.move_out()


def _sizes(given: str | None) -> tuple[int, ...]:
    if given is None:
        return _SIZES
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdigit() and 1 <= int(word) <= LARGEST_BATCH for word in words):
        raise ConfigurationError(
            f"--sizes: must be whole numbers from 1 to {LARGEST_BATCH} with commas between,"
            f" got {given!r}"
        )
    return tuple(sorted({int(word) for word in words}))


@contextmanager
def _without_advice() -> Iterator[None]:
    """Keep to itself what a runner says to those who look after a worker."""
    logger = logging.getLogger("celery_batch.serving.runner")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Say on standard error what is done just now: beside a spinner, else in a line at times."""
    console: Any = None
    with suppress(ImportError):  # an extra
        console = import_module("rich.console").Console(stderr=True)
    if console is None or not console.is_terminal:
        yield _Lines().tell
        return
    with console.status("") as status:
        yield lambda words: status.update(f"{words} ...")


class _Lines:
    """Says what is done just now where no spinner can turn."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, words: str) -> None:
        """Print a line, if the last one was some time ago."""
        if time.monotonic() - self._told >= _QUIET:
            self._told = time.monotonic()
            click.echo(f"{words} ...", err=True)
