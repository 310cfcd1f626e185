"""``celery batch check``: what will limit or break batches, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from shutil import get_terminal_size

import click
from celery.bin.base import CeleryCommand

from celery_batch.checks.checkup import checkup
from celery_batch.checks.collect import collect
from celery_batch.checks.finding import Finding, Level
from celery_batch.cli.common import wrapped

__all__ = ["check"]

_INDENT = 9 * " "

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


@click.command(name="check", cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--fail-level",
    type=click.Choice([Level.WARNING.value, Level.PROBLEM.value]),
    default=Level.PROBLEM.value,
    show_default=True,
    help="Exit with 1 after a finding of this level or a worse one.",
)
@click.pass_context
def check(ctx: click.Context, *, as_json: bool, fail_level: str) -> None:
    """
    Find what limits or breaks batches, and say what to do about it.

    It checks the app's settings, the broker, the result backend, this machine and the
    running workers.  Each finding has the id of its check, which does not change.
    Exit code: 1 if there is a finding of --fail-level or worse, else 0.
    """
    if sys.stderr.isatty():
        click.echo("Checking the app, its servers, this machine and the workers ...", err=True)
    found = list(checkup(collect(ctx.obj.app)))
    if as_json:
        findings = [{"id": check_id, **asdict(finding)} for check_id, finding in found]
        click.echo(json.dumps(findings, indent=2))
    else:
        _print(found)
    failing = {Level.PROBLEM, Level(fail_level)}
    if any(finding.level in failing for _, finding in found):
        ctx.exit(1)


def _summary(found: Sequence[tuple[str, Finding]]) -> str:
    counts = {level: sum(each.level is level for _, each in found) for level in Level}
    return (
        f"{_many(counts[Level.PROBLEM], 'problem')}, {_many(counts[Level.WARNING], 'warning')},"
        f" {counts[Level.OK]} ok"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _print(found: Sequence[tuple[str, Finding]]) -> None:
    width = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for check_id, finding in found:
        says = wrapped(f"{finding.level:8} {check_id}: {finding.says}", width, _INDENT)
        level = click.style(finding.level, _COLOURS[finding.level])
        click.echo(says.replace(finding.level, level, 1))
        if finding.fix:
            fix = wrapped(f"{_INDENT}-> {finding.fix}", width, _INDENT)
            click.echo(click.style(fix, "cyan"))
    click.echo(click.style(_summary(found), bold=True))
