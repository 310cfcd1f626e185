"""``celery batch jobs``: lists and controls running backfills from another terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from celery_batch.backfill.checkpoint import output_status
from celery_batch.backfill.control import Jobs
from celery_batch.backfill.progress import NO_ANSWER
from celery_batch.cli.common import POSITIVE, duration
from celery_batch.cli.errors import errors_in_one_line
from celery_batch.formatting import aligned

__all__ = ["jobs"]

_COLUMNS = (
    "ID",
    "TASK",
    "STATE",
    "ROWS",
    "FAILED",
    "RATE",
    "LEFT",
    "PENDING",
    "WORKERS",
    "WHERE",
    "STARTED",
    "OUTPUT",
)

#: Each command, and the reply that is printed.
_COMMANDS = {
    "pause": "is paused; its {pending:,} pending rows are still collected",
    "resume": "continues",
    "stop": "stops; {end}",
}


@click.group(name="jobs", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects as JSON.")
@click.option(
    "--timeout",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    help="Seconds without a further answer after which all jobs have answered.",
)
@click.pass_context
@errors_in_one_line
def jobs(ctx: click.Context, *, as_json: bool, timeout: float) -> None:
    """
    List, pause, resume and stop running backfills.

    A job is a `celery batch backfill`, or a program that iterates over task.backfill(), which
    runs now, on any machine with the same broker.  Without a command all of them are listed.

    Jobs that have ended are not listed; show says how far one has come, by its output.
    If it was stopped, interrupted or killed, the same backfill command continues it.
    """
    running = ctx.obj = ctx.with_resource(Jobs(ctx.obj.app, timeout))
    if ctx.invoked_subcommand is not None:
        return
    found = running.all()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        click.echo(aligned([_COLUMNS, *map(_row, found)]))
    else:
        click.echo("No backfill is running.", err=True)


def _command(name: str, text: str) -> click.Command:
    @click.pass_context
    @errors_in_one_line
    def control(ctx: click.Context, /, names: Sequence[str]) -> None:
        for job_id in names:
            job = ctx.obj.control(name, job_id)
            end = "the same command continues"
            end = end if job["output"] else "its loop ends with BackfillStopped"
            reply = _COMMANDS[name].format(pending=int(job["pending"]), end=end)
            click.echo(f"{job['id']} ({_where(job)}) {reply}.")

    argument = click.Argument(["names"], nargs=-1, required=True, metavar="ID...")
    return click.Command(name, callback=control, params=[argument], help=text, short_help=text)


jobs.add_command(
    _command("pause", "Pause jobs: send nothing more, and collect the pending answers.")
)
jobs.add_command(_command("resume", "Resume paused jobs."))
jobs.add_command(_command("stop", "Stop jobs as Ctrl-C does; what was answered is kept."))


@jobs.command(name="show", short_help="Show how far backfills have come, by their files.")
@click.argument("outputs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects as JSON.")
@errors_in_one_line
def show(outputs: Sequence[Path], *, as_json: bool) -> None:
    """
    Show how far the backfills into OUTPUTS have come.

    It reads the files beside the outputs, so it knows backfills that have ended, too.
    """
    found = map(output_status, outputs)
    if as_json:
        click.echo(json.dumps(list(found), indent=2))
    else:
        for each in found:
            click.echo(_status(each))


def _status(found: Mapping[str, Any]) -> str:
    at = time.strftime("%d %b %H:%M:%S", time.localtime(found["at"]))
    rows = "" if found["rows"] is None else f"{found['rows']:,} "
    words = f"{rows}rows of {found['task']}, {found['failed']:,} failed"
    if found["complete"]:
        return f"{found['output']}: complete since {at}: {words}"
    goes_on = "unless it is running, the same command continues"
    return f"{found['output']}: not complete, as of {at}: {words}; {goes_on}"


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
        f"{job['pending']:,} of {job['window']:,}",
        f"{job['workers']:,}",
        f"{job['host']}:{job['pid']}",
        time.strftime("%d %b %H:%M", time.localtime(job["started"])),
        _where(job),
    )


def _where(job: Mapping[str, Any]) -> str:
    """Return where its answers go: into a file, or to the program that iterates over them."""
    return str(job["output"]) if job["output"] else f"to {Path(job['program']).name}"


def _state(job: Mapping[str, Any]) -> str:
    if job["state"] == "running" and job["pending"] and job["since_answer"] > NO_ANSWER:
        return f"running, no answer for {duration(job['since_answer'])}"
    return str(job["state"])
