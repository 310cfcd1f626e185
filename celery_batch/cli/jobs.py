"""``celery batch jobs``: the running backfills, seen and steered from another terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from kombu.exceptions import OperationalError

from celery_batch.backfill.checkpoint import ending
from celery_batch.backfill.control import Jobs
from celery_batch.cli.common import duration
from celery_batch.errors import BatchError

__all__ = ["jobs"]

#: Seconds without an answer after which a running job's silence is told.
_LONG = 10.0

_COLUMNS = (
    *("ID", "TASK", "STATE", "ROWS", "FAILED", "RATE", "LEFT"),
    *("ON THEIR WAY", "WORKERS", "WHERE", "STARTED", "OUTPUT"),
)

#: What is typed, and what is said of a job that has done it.
_VERBS = {
    "pause": "is paused; its {flying:,} rows on their way are still collected",
    "resume": "goes on",
    "stop": "stops; {end}",
}


@click.group(name="jobs", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For programs: a list of objects.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds without a further answer after which all have answered.",
)
@click.pass_context
def jobs(ctx: click.Context, *, as_json: bool, timeout: float) -> None:
    """
    List the running backfills, on whatever machine, or steer one.

    What has ended is not listed; show says of a file how far its backfill has come, and where
    it was stopped, interrupted or killed, the same command goes on with it.
    """
    running = ctx.obj = ctx.with_resource(Jobs(ctx.obj.app, timeout))
    if ctx.invoked_subcommand is not None:
        return
    found = _or_refuse(running.all)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        click.echo("\n".join(table([_COLUMNS, *map(_row, found)])))
    else:
        click.echo("No backfill is running.", err=True)


def _steers(verb: str, text: str) -> click.Command:
    @click.pass_context
    def steer(ctx: click.Context, /, names: Sequence[str]) -> None:
        for name in names:
            told = _or_refuse(lambda name=name: ctx.obj.steer(verb, name))
            words = _VERBS[verb].format(flying=int(told["flying"]), end=_end(told))
            click.echo(f"{told['id']} ({_where(told)}) {words}.")

    argument = click.Argument(["names"], nargs=-1, required=True, metavar="ID...")
    return click.Command(verb, callback=steer, params=[argument], help=text, short_help=text)


jobs.add_command(_steers("pause", "Send nothing more, and collect what is on its way."))
jobs.add_command(_steers("resume", "Go on with paused backfills."))
jobs.add_command(_steers("stop", "End backfills as Ctrl-C does; commands keep their answers."))


@jobs.command(name="show", short_help="Say how far backfills have come that do not run.")
@click.argument("outputs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For programs: a list of objects.")
def show(outputs: Sequence[Path], *, as_json: bool) -> None:
    """Say how far the backfills into OUTPUTS have come, by what lies beside these on disk."""
    found = (_or_refuse(lambda output=output: ending(output)) for output in outputs)
    if as_json:
        click.echo(json.dumps(list(found), indent=2))
    else:
        for each in found:
            click.echo(_ended(each))


def _ended(found: Mapping[str, Any]) -> str:
    at = time.strftime("%d %b %H:%M:%S", time.localtime(found["at"]))
    rows = "" if found["rows"] is None else f"{found['rows']:,} "
    words = f"{rows}rows of {found['task']}, {found['failed']:,} failed"
    if found["complete"]:
        return f"{found['output']}: complete since {at}: {words}"
    goes_on = "unless it is running, the same command goes on"
    return f"{found['output']}: not complete, as of {at}: {words}; {goes_on}"


def _or_refuse(ask: Any) -> Any:
    try:
        return ask()
    except BatchError as error:
        raise click.ClickException(str(error)) from error
    except (OperationalError, OSError) as error:
        raise click.ClickException(f"the broker cannot be reached: {error}") from error


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    total = f" of {job['total']:,}" if job["total"] is not None else ""
    return (
        str(job["id"]),
        str(job["task"]),
        _state(job),
        f"{job['done']:,}{total}",
        f"{job['failed']:,}",
        f"{job['rate']:,.0f}/s",
        duration(job["left"]) if job["left"] is not None else "-",
        f"{job['flying']:,} of {job['window']:,}",
        f"{job['workers']:,}",
        f"{job['host']}:{job['pid']}",
        time.strftime("%d %b %H:%M", time.localtime(job["started"])),
        _where(job),
    )


def _where(job: Mapping[str, Any]) -> str:
    """Return where its answers go: into a file, or to the program that has asked for them."""
    return str(job["output"]) if job["output"] else f"to {Path(job['program']).name}"


def _end(job: Mapping[str, Any]) -> str:
    again = "the same command goes on from there"
    return again if job["output"] else "its loop ends with BackfillStopped"


def _state(job: Mapping[str, Any]) -> str:
    if job["state"] == "running" and job["flying"] and job["silent"] > _LONG:
        return f"running, no answer for {duration(job['silent'])}"
    return str(job["state"])
