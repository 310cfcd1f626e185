"""``celery batch tune``: measures a model and proposes settings."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli.common import (
    POSITIVE,
    FiniteRange,
    Row,
    at_most_every,
    batch_task,
    check_plot,
    leave_out_costly,
    plot_option,
    rows_of_file,
    say_left_out,
)
from celery_batch.cli.errors import errors_in_one_line
from celery_batch.cli.trace import load_of, record
from celery_batch.cli.tune_report import as_data, draw, show
from celery_batch.config import LARGEST_BATCH, policy_of, steps_of
from celery_batch.errors import (
    BackfillError,
    BatchError,
    ConfigurationError,
    ItemTooLarge,
    ModelError,
    OutOfMemory,
)
from celery_batch.formatting import brief
from celery_batch.items.functions import item_cost_of
from celery_batch.items.pending_answer import pending_answer
from celery_batch.items.shapes import fixed_sizes_of
from celery_batch.runtime import registry
from celery_batch.runtime.registry import instance_of
from celery_batch.runtime.runner import ErrorPolicy, Outcome, Runner
from celery_batch.runtime.signature import example_rows
from celery_batch.task import BatchTask
from celery_batch.tuning.curve import Curve, cost_of_call
from celery_batch.tuning.measure import Plan, Run, measure
from celery_batch.tuning.propose import propose
from celery_batch.tuning.simulate import Load
from celery_batch.worker.executor.loader import load_models

__all__ = ["probe", "rows_for", "tune"]

#: The share of all rows, and the number, that may fail and be left out.
_FEW_FAILED, _MOST_FAILED = 0.05, 100

#: Seconds between two lines of progress on a terminal.
_EVERY = 5.0

#: Seconds for which each size is measured, and requests are recorded.
_SECONDS_EACH, _SECONDS_RECORDED = 2.0, 60.0

#: Powers of two up to the largest batch that may be set.
_SIZES = tuple(1 << n for n in range(LARGEST_BATCH.bit_length()) if 1 << n <= LARGEST_BATCH)


def rows_for(task: BatchTask, source: str | None, field: str | None = None) -> list[Row]:
    """Return the rows to measure a task with: those of a file, else its model's own examples."""
    if source is None:
        if task.model is None:
            what, rows = "it is a function", []
        else:
            what = "its model has no examples()"
            rows = example_rows(task.model, instance_of(task.model).examples())
        if not rows:
            raise ConfigurationError(
                f"{task.name}: {what}, so there is nothing to measure with;"
                f" give --input rows.jsonl, a line for each call such as callers make"
            )
        return rows
    return rows_of_file(task, source, field)


def _of_one_key(task: BatchTask, rows: list[Row]) -> list[Row]:
    """Return the rows that may share a batch: those with the most frequent key."""
    item_key = task._item_key
    if item_key is None:
        return rows
    by_key: dict[Any, list[Row]] = {}
    for row in rows:
        by_key.setdefault(item_key.of_call(row, {}), []).append(row)
    return max(by_key.values(), key=len)


def costs_of(task: BatchTask, rows: Sequence[Row]) -> list[float]:
    """Return what rows cost; none where the task's batches are not limited by cost."""
    item_cost = item_cost_of(task) if task.max_batch_cost is not None else None
    return [] if item_cost is None else [item_cost.of_call(row, {}) for row in rows]


def probe(task: BatchTask, rows: list[Row]) -> Callable[[int], Run]:
    """Return what times a batch of a number of rows here; rows that it cannot run are removed."""
    policy, usable = policy_of(task), _of_one_key(task, rows)
    endless = _in_turn(usable)
    may_fail = min(_FEW_FAILED * len(rows), _MOST_FAILED)

    def run(size: int) -> Run:
        nonlocal may_fail
        while True:
            batch = list(islice(endless, size))
            outcomes, seconds, memory = _timed(task, batch)
            if not any(_is_of_row(each.error) for each in outcomes):
                break
            gone = _unusable(task, batch)
            may_fail -= sum(not isinstance(each, ItemTooLarge) for each in gone.values())
            if not gone or may_fail < 0:
                break
            for each in (usable, rows):
                each[:] = [row for row in each if id(row) not in gone]
            if not usable:
                raise BackfillError(f"no row fits the task: {next(iter(gone.values()))}")
        _check(task, batch, outcomes)
        return Run(seconds, memory, cost_of_call(policy, costs_of(task, batch), size))

    return run


def _in_turn(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows again and again, without those that are removed meanwhile."""
    for at in count():
        yield rows[at % len(rows)]


def _runner(task: BatchTask, *, isolate_failures: bool) -> Runner:
    """Return a new runner, since one remembers what did not fit, for batches of any size."""
    policy = ErrorPolicy(isolate_failures)
    return Runner(task._batch_stages, task.name, policy, fixed_sizes=fixed_sizes_of(task))


def _timed(task: BatchTask, batch: Sequence[Row]) -> tuple[list[Outcome], float, int | None]:
    """Run a batch; return what came of each row, the seconds, and the GPU's memory if known."""
    columns = [list(column) for column in zip(*batch, strict=True)]
    runner = _runner(task, isolate_failures=False)
    torch: Any = sys.modules.get("torch")
    cuda = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
    if cuda is not None:
        cuda.reset_peak_memory_stats()
    with pending_answer.running_batch():
        began = time.perf_counter()
        outcomes = runner.run(*columns)
        seconds = time.perf_counter() - began
    return outcomes, seconds, cuda.max_memory_allocated() if cuda is not None else None


def _is_of_row(error: Exception | None) -> bool:
    """Return whether an error may be that of one row, and not of the model or the device."""
    is_ours = isinstance(error, BatchError) and not isinstance(error, ItemTooLarge)
    return error is not None and not is_ours


def _unusable(task: BatchTask, batch: Sequence[Row]) -> dict[int, Exception]:
    """Return the errors of the rows of a batch that fail alone, by the rows' `id`."""
    rows = {id(row): row for row in batch}
    columns = [list(column) for column in zip(*rows.values(), strict=True)]
    runner = _runner(task, isolate_failures=True)
    with pending_answer.running_batch():
        errors = [each.error for each in runner.run(*columns)]
    found = zip(rows, errors, strict=True)
    return {row: error for row, error in found if error is not None and _is_of_row(error)}


def _check(task: BatchTask, batch: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
    for row, outcome in zip(batch, outcomes, strict=True):
        error = outcome.error
        if isinstance(error, OutOfMemory):
            raise error
        if error is not None:
            shown = brief(row[0] if len(row) == 1 else row)
            raise ModelError(
                f"{task.name}: {shown} failed with {type(error).__name__}: {error};"
                f" measure with rows that succeed, by --input"
            ) from error


@click.command(name="tune", cls=CeleryCommand)
@click.argument("task")
@click.option(
    "--latency",
    type=POSITIVE,
    default=0.1,
    show_default=True,
    help="Seconds within which 99 of 100 requests are to be answered.",
)
@click.option(
    "--rate",
    type=POSITIVE,
    show_default="70 % of what it can answer, or that of the trace",
    help="Requests a second that one process is to answer.",
)
@click.option(
    "--input",
    "source",
    show_default="the model's examples()",
    help="Rows to measure with: a file, a folder, or - for stdin; a function needs them.",
)
@click.option("--field", help="The field that is the task's only argument.")
@click.option("--sizes", show_default="growing", help="The batch sizes to measure, as in 1,8,32.")
@click.option(
    "--seconds",
    type=POSITIVE,
    show_default="2, and 60 with --record",
    help="Seconds to measure each size, about, or to record requests.",
)
@click.option(
    "--record",
    "recorded",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Measure nothing, and write to this file what arrives at running workers.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Simulate the requests of such a file instead of independent ones.",
)
@click.option(
    "--overhead",
    type=FiniteRange(min=0),
    default=0.003,
    show_default=True,
    help="Seconds that a message and its answer take beside the model.",
)
@plot_option
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--device",
    show_default="the first of batch_devices",
    help="The device to measure on, as in cuda:1.",
)
@click.pass_context
@errors_in_one_line
def tune(
    ctx: click.Context, /, task: str, recorded: Path | None, plot: Path | None, **options: Any
) -> None:
    """
    Measure TASK's model, and propose settings for it.

    The model runs batches of growing sizes, in this process and on its device.  That needs
    neither a broker nor a worker; a worker on the same device makes the times longer.
    """
    if recorded is not None:
        _record(ctx.obj.app, task, recorded, options["seconds"] or _SECONDS_RECORDED)
        return
    if plot is not None:
        check_plot(plot)
    app, trace = ctx.obj.app, load_of(options["trace"], task) if options["trace"] else None
    if trace and batch_task(app, task).max_batch_cost is not None and not any(trace.costs):
        raise ConfigurationError(
            f"--trace: {options['trace']}: has no costs; record it with workers that have {task}'s"
            f" max_batch_cost"
        )
    report = _progress()
    device, curve, costs = _measured(app, task, options, report)
    proposal = propose(
        curve,
        options["latency"],
        options["rate"] or (trace.rate if trace else None),
        report,
        base=policy_of(app.tasks[task]),
        load=Load.at if trace is None and not costs else partial(_load, trace, costs),
        max_item_cost=app.tasks[task].max_item_cost,
    )
    if options["is_json"]:
        click.echo(json.dumps(as_data(task, device, curve, proposal), indent=2))
    else:
        show(task, device, curve, proposal)
    if plot is not None:
        draw(plot, f"{task} on {device}", curve, proposal)


def _record(app: Any, task: str, path: Path, seconds: float) -> None:
    batch_task(app, task)
    count, processes = record(app, task, path, seconds, _progress())
    unit = "process" if processes == 1 else "processes"
    click.echo(f"{count:,} requests to {processes} {unit}, in {path}")


def _load(trace: Load | None, costs: Sequence[float], rate: float) -> Load:
    """Return recorded requests at a rate, or independent ones with the costs of known rows."""
    return Load.at(rate, costs=costs) if trace is None else trace.faster(rate)


def _measured(
    app: Any, name: str, options: dict[str, Any], report: Callable[[str], None]
) -> tuple[str, Curve, Sequence[float]]:
    task = batch_task(app, name)
    plan = Plan(
        _sizes(options["sizes"], task),
        options["seconds"] or _SECONDS_EACH,
        options["latency"],
        asked_for=options["sizes"] is not None,
    )
    if options["device"]:
        app.conf.batch_devices = options["device"]
    with _runner_errors_only():
        report("loading")
        try:
            device = load_models(app, [name])
            rows = rows_for(task, options["source"], options["field"])
            total = len(rows)
            leave_out_costly(task, rows)
            curve = measure(probe(task, rows), plan, report)
            say_left_out(total - len(rows), total, "are too large for the task, or fail in it")
            return device, replace(curve, overhead=options["overhead"]), costs_of(task, rows)
        finally:
            registry.unload_all()


def _sizes(given: str | None, task: Any) -> tuple[int, ...]:
    fixed: tuple[int, ...] = steps_of(task, "batch_sizes")
    if given is None:
        return fixed or _SIZES
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdigit() and 1 <= int(word) <= LARGEST_BATCH for word in words):
        raise ConfigurationError(
            f"--sizes: must be whole numbers from 1 to {LARGEST_BATCH} with commas between,"
            f" got {given!r}"
        )
    sizes = {int(word) for word in words}
    if fixed and not sizes <= {*fixed}:
        raise ConfigurationError(
            f"--sizes: {task.name} has calls of {', '.join(map(str, fixed))} rows, got {given!r}"
        )
    return tuple(sorted(sizes))


@contextmanager
def _runner_errors_only() -> Iterator[None]:
    """Hide the runner's warnings, which are about the settings of workers."""
    logger = logging.getLogger("celery_batch.runtime.runner")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _progress() -> Callable[[str], None]:
    """Return what shows the present step on a terminal, in a line now and then."""
    if not sys.stderr.isatty():
        return lambda _step: None
    return at_most_every(_EVERY, lambda step: click.echo(f"{step} ...", err=True))
