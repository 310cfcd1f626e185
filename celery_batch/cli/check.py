"""``celery batch check``: what will limit or break batches, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click
from celery.bin.base import CeleryCommand

from celery_batch.checks.checkup import checkup, worst
from celery_batch.checks.collect import collect
from celery_batch.checks.finding import Finding, Level

__all__ = ["check"]

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


@click.command(name="check", cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def check(ctx: click.Context, *, as_json: bool) -> None:
    """
    Look for what will limit or break batches, and say what to do about it.

    It checks the app's settings, the broker, the result backend, this machine and the
    running workers.  Exit code: 1 if there is a problem, else 0.
    """
    if sys.stderr.isatty():
        click.echo("Checking the app, its servers, this machine and the workers ...", err=True)
    found = list(checkup(collect(ctx.obj.app)))
    if as_json:
        click.echo(json.dumps([_plain(*each) for each in found], indent=2))
    elif sys.stdout.isatty():
        _table(found)
    else:
        _lines(found)
    if worst(finding for _, finding in found) is Level.PROBLEM:
        ctx.exit(1)


def _plain(name: str, finding: Finding) -> dict[str, str]:
    return {"check": name, "level": finding.level, "says": finding.says, "fix": finding.fix}


def _summary(found: Sequence[tuple[str, Finding]]) -> str:
    counts = {level: sum(each.level is level for _, each in found) for level in Level}
    return (
        f"{_many(counts[Level.PROBLEM], 'problem')}, {_many(counts[Level.WARNING], 'warning')},"
        f" {counts[Level.OK]} ok"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _lines(found: Sequence[tuple[str, Finding]]) -> None:
    for name, finding in found:
        click.echo(f"{finding.level:8} {name}: {finding.says}")
        if finding.fix:
            click.echo(f"{'':8} -> {finding.fix}")
    click.echo(_summary(found))


def _table(found: Sequence[tuple[str, Finding]]) -> None:
    try:
        from rich.console import Console  # noqa: PLC0415 (only a terminal needs it)
        from rich.table import Table  # noqa: PLC0415 (likewise)
        from rich.text import Text  # noqa: PLC0415 (likewise)
    except ImportError:
        _lines(found)
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("", "check", "what was found, and what to do"):
        table.add_column(column, overflow="fold")
    for name, finding in found:
        text = Text(finding.says)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="cyan")
        table.add_row(Text(finding.level, style=_COLOURS[finding.level]), name, text)
    console = Console()
    console.print(table)
    console.print(_summary(found), style="bold", highlight=False)
