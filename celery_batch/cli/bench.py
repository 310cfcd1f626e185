"""``celery batch bench``: offers load to running workers, and measures their answers."""

from __future__ import annotations

import asyncio
import json
import logging
import os.path
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from celery.bin.base import CeleryCommand
from kombu.exceptions import OperationalError

from celery_batch.backfill.inputs import Arguments
from celery_batch.backfill.sender import unserved
from celery_batch.cli.common import (
    POSITIVE,
    Row,
    batch_task,
    leave_out_costly,
    rows_of_file,
    say_left_out,
    wrapped,
)
from celery_batch.cli.errors import INTERRUPTED, errors_in_one_line
from celery_batch.client.results.result import forget_many
from celery_batch.compat.gc import collect_less_often, freeze_existing
from celery_batch.errors import ConfigurationError
from celery_batch.formatting import figure, number
from celery_batch.task import BatchTask
from celery_batch.tuning.load_test import (
    TIMEOUT,
    LoadResult,
    Outcome,
    arrivals,
    load_result,
    parse_rates,
)

__all__ = ["LoadGenerator", "bench"]

logger = logging.getLogger(__name__)

#: Requests that reach the broker later than this many seconds are worth a line.
_LONGEST_SEND = 0.1

#: Most requests of one rate: this process keeps all of them in memory.
_MOST_REQUESTS = 1_000_000

_HEAD = ("rate", "answers/s", "errors", "p50", "p90", "p99", "max", "batch")

#: Characters of each column.
_WIDTHS = (8, 10, 8, 9, 9, 9, 9, 7)

#: Characters of a line about an error.
_WIDTH = 100


def _rates(_ctx: click.Context, _option: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        return parse_rates(value)
    except ValueError:
        raise click.BadParameter(f"{value!r}: write 50, or 50,100,200, or 100:500:100") from None


@click.command(name="bench", cls=CeleryCommand)
@click.argument("task")
@click.option(
    "--rate",
    "rates",
    callback=_rates,
    metavar="RATES",
    required=True,
    help="Requests a second: a number, several as in 50,100,200, or a ramp as in 100:500:100,"
    " one after the other.",
)
@click.option(
    "--input",
    "sources",
    multiple=True,
    required=True,
    help="The argument of the requests: a file as for a backfill, or JSON, as in '\"a text\"'."
    "  Each request draws one of all rows; may be given several times.",
)
@click.option("--field", help="The field of a row that is the task's only argument.")
@click.option(
    "--duration",
    type=POSITIVE,
    default=10.0,
    show_default=True,
    help="Seconds to send requests at each rate.",
)
@click.option(
    "--timeout",
    type=POSITIVE,
    default=10.0,
    show_default=True,
    help="Seconds after which a request fails and expires.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object as JSON at the end.")
@click.pass_context
@errors_in_one_line
def bench(
    ctx: click.Context,
    /,
    task: str,
    rates: tuple[float, ...],
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """
    Measure the latency of TASK under load.

    It sends requests to the running workers at random times, as many users do, whether or not
    those before were answered.  A latency counts from when its request was to be sent.  The load
    is real: the workers' other work becomes slower.  Exit code: 0 when all rates were measured,
    whatever the answers; 1 if the first request, which is not counted, has no answer; 130 after
    Ctrl-C.
    """
    _check_requests(rates, options["duration"])
    found = batch_task(ctx.obj.app, task)
    if found.ignore_result:
        raise ConfigurationError(f"{task}: has ignore_result, so no answer can be waited for")
    rows = _rows(found, options["sources"], options["field"])
    results: list[LoadResult] = []
    is_interrupted = False
    try:
        for result in _measured(found, rates, rows, options["duration"], options["timeout"]):
            if not as_json:
                _show(result, options["timeout"], is_first=not results)
            results.append(result)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        is_interrupted = True
    if as_json:
        click.echo(json.dumps(_as_data(task, options, results), indent=2))
    if is_interrupted:
        ctx.exit(INTERRUPTED)


def _check_requests(rates: Sequence[float], duration: float) -> None:
    most = max(rates) * duration
    if most > _MOST_REQUESTS:
        raise ConfigurationError(
            f"--rate: {max(rates):g} a second for {duration:g} s are {most:,.0f} requests, and at"
            f" most {_MOST_REQUESTS:,} can be sent at one rate; lower it, or --duration"
        )


def _rows(task: BatchTask, sources: Sequence[str], field: str | None) -> list[Row]:
    """Return the rows of all sources, each a file or JSON, that the task takes."""
    rows: list[Row] = []
    for source in sources:
        # Path.exists() raises OSError for a long text.
        if source == "-" or os.path.exists(source):  # noqa: PTH110
            rows += rows_of_file(task, source, field)
        else:
            rows.append(_row_of_json(task, source, field))
    total = len(rows)
    leave_out_costly(task, rows)
    say_left_out(total - len(rows), total, "are too large for the task")
    return rows


def _row_of_json(task: BatchTask, text: str, field: str | None) -> Row:
    try:
        value = json.loads(text)
    except ValueError:
        raise ConfigurationError(
            f"--input: {text!r}: is no file here, and no JSON; a text in JSON has quotes, as in"
            " --input '\"a text\"'"
        ) from None
    (row,) = Arguments(task._batch_signature, field=field).rows([value])
    if row.flaw:
        raise ConfigurationError(f"--input: {text}: {row.flaw.partition(': ')[2]}")
    return row.values


def _measured(
    task: BatchTask, rates: Sequence[float], rows: Sequence[Row], duration: float, timeout: float
) -> Iterator[LoadResult]:
    """Yield the result of each rate when it is there."""
    generator = LoadGenerator(task, timeout)
    (first,) = asyncio.run(generator.run([0.0], rows[:1]))
    if first.error:
        raise click.ClickException(_why_failed(task, first))
    freeze_existing()
    collect_less_often()
    for seed, rate in enumerate(rates):
        times = arrivals(rate, duration, seed)
        drawn = random.Random(seed).choices(rows, k=len(times))  # noqa: S311 (no secret)
        outcomes = asyncio.run(generator.run(times, drawn))
        yield load_result(rate, duration, timeout, outcomes)


#: Seconds from the beginning to the first request's time, in which the first ones are prepared.
_HEAD_START = 0.05

#: An event loop wakes up to so many seconds late, so requests may leave as much early.
_EARLY = 0.001

#: Results that are deleted in one command.
_FORGOTTEN_AT_ONCE = 1000


class LoadGenerator:
    """Sends calls of a task, each at its time, and waits for their answers meanwhile."""

    def __init__(self, task: Any, timeout: float) -> None:
        self._task = task
        self._timeout = timeout
        #: The results of requests that have ended.
        self._ended: list[Any] = []

    async def run(self, times: Sequence[float], rows: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """Send a request for each row at its time, in order; return what became of them."""
        began = time.monotonic() + _HEAD_START
        requests: list[asyncio.Task[Outcome]] = []
        async with asyncio.TaskGroup() as group:
            for at, row in zip(times, rows, strict=True):
                # At least once for each request, so that answers are read where this is late.
                await asyncio.sleep(max(began + at - _EARLY - time.monotonic(), 0.0))
                requests.append(group.create_task(self._request(began, at, row)))
        await asyncio.to_thread(self._forget)
        return [request.result() for request in requests]

    async def _request(self, began: float, at: float, row: tuple[Any, ...]) -> Outcome:
        due = min(at, time.monotonic() - began)
        left = began + due + self._timeout - time.monotonic()
        if left <= 0:  # this process is that late
            return self._timed_out(due, None)
        sent = result = None
        error = message = ""
        deadline = asyncio.timeout(left)
        try:
            async with deadline:
                result = await self._task.aapply_async(row, expires=left)
                sent = time.monotonic() - began
                await result
        except Exception as failure:  # noqa: BLE001 (it is counted by its kind)
            error, message = type(failure).__name__, str(failure)
        if deadline.expired():
            return self._timed_out(due, sent)
        ended = time.monotonic() - began
        if result is not None:
            self._ended.append(result)
        info = None if result is None or error else result.batch_info
        return Outcome(due, sent, ended, error, message, None if info is None else info.size)

    def _timed_out(self, due: float, sent: float | None) -> Outcome:
        message = f"no answer within {self._timeout:g} s"
        return Outcome(due, sent, due + self._timeout, TIMEOUT, message)

    def _forget(self) -> None:
        """Delete the stored results, if possible: a test may have made many."""
        ended, self._ended = self._ended, []
        try:
            for start in range(0, len(ended), _FORGOTTEN_AT_ONCE):
                forget_many(ended[start : start + _FORGOTTEN_AT_ONCE])
        except Exception as error:  # noqa: BLE001 (whatever the backend raises)
            logger.warning("Could not delete the stored results of the requests: %r", error)


def _why_failed(task: BatchTask, first: Outcome) -> str:
    """Return why the first request has no answer."""
    if first.sent is None and first.error in (TIMEOUT, OperationalError.__name__):
        return f"{task.name}: the broker cannot be reached: {first.error}: {first.message}"
    return (first.error == TIMEOUT and unserved(task, {})) or (
        f"{task.name}: the first request has failed: {first.error}: {first.message}"
    )


def _show(result: LoadResult, timeout: float, *, is_first: bool) -> None:
    """Print a line of the table, and lines about errors below."""
    if is_first:
        click.echo(_line(_HEAD))
    click.echo(_line(_cells(result, timeout)))
    notes = [
        f"{count:,} {kind}: {' '.join(result.messages[kind].split())}"
        for kind, count in result.errors.items()
    ]
    if result.send_delay is not None and result.send_delay > _LONGEST_SEND:
        notes.append(
            f"1 request in 100 reached the broker {figure(result.send_delay)} late or later; the"
            " latencies have the delay in them, so send from several processes or machines"
        )
    for note in notes:
        click.echo(wrapped(f"{'':9} {note}", _WIDTH, 12 * " "))


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def _cells(result: LoadResult, timeout: float) -> Sequence[str]:
    latencies = (result.p50, result.p90, result.p99, result.max)
    return (
        number(result.rate),
        number(result.achieved_rate),
        f"{sum(result.errors.values()):,}",
        *(_latency(seconds, timeout) for seconds in latencies),
        "-" if result.batch_size is None else number(result.batch_size),
    )


def _latency(seconds: float | None, timeout: float) -> str:
    if seconds is None:
        return "-"
    return f"> {figure(timeout)}" if seconds >= timeout else figure(seconds)


def _as_data(task: str, options: dict[str, Any], results: Sequence[LoadResult]) -> dict[str, Any]:
    """Return what `_show` prints, and more, as plain data."""
    return {
        "task": task,
        "duration": options["duration"],
        "timeout": options["timeout"],
        "rates": [asdict(result) for result in results],
    }
