"""What was measured and what is proposed, for people and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

import click

from celery_batch.amounts import figure, number
from celery_batch.tuning.curve import MIDDLE, SLOW, Curve, Point
from celery_batch.tuning.propose import Proposal, Trial
from celery_batch.tuning.words import (
    about_carrying,
    about_scatter,
    about_size,
    about_target,
    about_wait,
)

__all__ = ["as_data", "show"]

#: What is proposed.
_SETTINGS = ("max_batch_size", "max_wait", "linger")

#: The columns; one in which nothing is known is left out.
_HEAD = ("batch", "p50", "p95", "items/s", "speed-up", "in time/s", "memory")

#: Between two columns.
_GAP = "  "

#: Characters of a line, in a terminal that has so many.
_WIDEST = 100

#: Characters of the longest bar; where there is no room for a short one, there is none.
_LONGEST_BAR, _SHORTEST_BAR = 20, 8

#: Parts of a character's width.
_EIGHTHS = " ▏▎▍▌▋▊▉█"

_GIB = 1 << 30


def show(task: str, device: str, curve: Curve, proposal: Proposal) -> None:
    """
    Print a table and a proposal on standard output.

    Args:
        task: The task's name.
        device: Where its model was measured.
        curve: What was measured.
        proposal: What is proposed.
    """
    width = min(get_terminal_size().columns, _WIDEST)
    wanted = f"99 of 100 requests within {figure(proposal.goal.latency)}"
    above = [f"No larger ones: {curve.cap}." if curve.cap else "", about_scatter(curve)]
    below = [
        f"max_batch_size: {about_size(curve, proposal)}",
        about_carrying(proposal),
        f"max_wait, linger: {about_wait(curve, proposal)}",
    ]
    lines = [
        f"{task} on {device}",
        *_table(curve, proposal, width),
        *(_wrapped(text, width) for text in above if text),
        "",
        f"Wanted: {wanted}, at {number(proposal.rate)} a second.",
        _wrapped(about_target(curve, proposal), width),
        click.style(f"  {settings(proposal)}", bold=True),
        *(_wrapped(text, width) for text in below if text),
    ]
    for line in lines:
        click.echo(line)


def settings(proposal: Proposal) -> str:
    """Return the task options that are proposed, as they are written."""
    policy = proposal.chosen.policy
    linger = f", linger={policy.linger:g}" if policy.linger is not None else ""
    return f"max_batch_size={policy.max_batch_size}, max_wait={policy.max_wait:g}{linger}"


def as_data(task: str, device: str, curve: Curve, proposal: Proposal) -> dict[str, Any]:
    """
    Return what `show` prints, and more, as plain data.

    Args:
        task: The task's name.
        device: Where its model was measured.
        curve: What was measured.
        proposal: What is proposed.
    """
    sizes = [
        {
            "size": point.size,
            "p50": point.quantile(MIDDLE),
            "p95": point.quantile(SLOW),
            "runs": len(point.seconds),
            "rate": point.rate,
            "memory": point.memory,
            "bears": trial.bears,
        }
        for point, trial in zip(curve.points, proposal.sizes, strict=True)
    ]
    return {
        "task": task,
        "device": device,
        "latency": proposal.goal.latency,
        "rate": proposal.rate,
        "sizes": sizes,
        "cap": curve.cap,
        "meets": proposal.chosen.meets,
        "bears": proposal.chosen.bears,
        "doubt": about_carrying(proposal),
        "settings": {name: getattr(proposal.chosen.policy, name) for name in _SETTINGS},
        "forecast": asdict(proposal.chosen.forecast),
    }


def _wrapped(text: str, width: int) -> str:
    return fill(text, width, break_long_words=False, break_on_hyphens=False)


def _table(curve: Curve, proposal: Proposal, width: int) -> Iterator[str]:
    """Yield lines: amounts in columns, and bars as long as there is room for."""
    most, alone = max(point.rate for point in curve.points), curve.points[0].rate
    found = list(zip(curve.points, proposal.sizes, strict=True))
    rows = [_HEAD, *(_cells(point, trial, alone) for point, trial in found)]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    room = width - sum(each + len(_GAP) for each in widths) - 1
    longest = min(room, _LONGEST_BAR) if room >= _SHORTEST_BAR else 0
    bars = ["items/s" if longest else "", *(_bar(each.rate / most, longest) for each, _ in found)]
    chosen = [False, *(_is_chosen(trial, proposal) for _, trial in found)]
    for cells, bar, is_chosen in zip(zip(*columns, strict=True), bars, chosen, strict=True):
        amounts = (cell.rjust(each) for cell, each in zip(cells, widths, strict=True))
        line = f" {_GAP.join([*amounts, bar])}".rstrip()
        yield click.style(line, bold=True) if is_chosen else line


def _cells(point: Point, trial: Trial, alone: float) -> Sequence[str]:
    return (
        str(point.size),
        figure(point.quantile(MIDDLE)),
        figure(point.quantile(SLOW)),
        number(point.rate),
        f"{point.rate / alone:.1f}",
        number(trial.bears),
        _memory(point.memory),
    )


def _is_chosen(trial: Trial, proposal: Proposal) -> bool:
    return trial.policy.max_batch_size == proposal.chosen.policy.max_batch_size


def _memory(amount: int | None) -> str:
    return "" if amount is None else f"{amount / _GIB:.2f} GiB"


def _bar(share: float, longest: int) -> str:
    eighths = round(share * longest * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
