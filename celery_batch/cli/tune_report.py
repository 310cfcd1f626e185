"""What ``celery batch tune`` shows: a table and a proposal, a plot, or plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NamedTuple

import click

from celery_batch.batching.policy import BatchPolicy
from celery_batch.cli.common import FOCUS, LIMIT, PLAIN, finish_axes, plotted, wrapped
from celery_batch.formatting import figure, number
from celery_batch.tuning.curve import MEDIAN, SLOW, Curve
from celery_batch.tuning.explanations import (
    about_cost,
    about_messages,
    about_scatter,
    about_size,
    about_target,
    about_wait,
)
from celery_batch.tuning.propose import Proposal

__all__ = ["as_data", "draw", "show"]

#: The columns; those without any value are left out.
_HEAD = ("p50", "p95", "items/s", "speed-up", "in time/s", "memory")

#: Between two columns.
_GAP = "  "

#: Most characters of a line.
_WIDEST = 100

#: Characters of the longest bar; there are no bars if there is room for less than the shorter.
_LONGEST_BAR, _SHORTEST_BAR = 20, 8

#: Parts of a character's width.
_EIGHTHS = " ▏▎▍▌▋▊▉█"

_GIB = 1 << 30


def show(task: str, device: str, curve: Curve, proposal: Proposal) -> None:
    """Print a table and a proposal on standard output."""
    width = min(get_terminal_size().columns, _WIDEST)
    settings = {
        option: value
        for option, value in _settings(proposal.chosen.policy).items()
        if value is not None
    }
    options = ", ".join(f"{option}={value:g}" for option, value in settings.items())
    wanted = f"99 of 100 requests within {figure(proposal.latency)}"
    larger = "larger ones" if curve.line is None else "batches of more items"  # in the table: cost
    above = [
        f"No {larger}: {curve.cap}." if curve.cap else "",
        about_cost(curve),
        about_scatter(curve),
    ]
    below = [
        f"{next(iter(settings))}: {about_size(curve, proposal)}",
        about_messages(proposal),
        f"max_wait, linger: {about_wait(curve, proposal)}",
    ]
    lines = [
        f"{task} on {device}",
        *_table(curve, proposal, width),
        *(wrapped(text, width) for text in above if text),
        "",
        f"Wanted: {wanted}, at {number(proposal.rate)} a second.",
        wrapped(about_target(curve, proposal), width),
        click.style(f"  {options}", bold=True),
        *(wrapped(text, width) for text in below if text),
    ]
    for line in lines:
        click.echo(line)


class _Line(NamedTuple):
    """What is known of batches of one size; of the largest batch, where cost limits them."""

    size: float
    p50: float
    p95: float
    rate: float
    max_rate: float
    runs: int
    memory: int | None = None


def _lines(curve: Curve, proposal: Proposal) -> list[_Line]:
    if curve.line is None:
        return [
            _Line(point.size, point.quantile(MEDIAN), point.quantile(SLOW), point.rate,
                  trial.max_rate, len(point.seconds), point.memory)
            for point, trial in zip(curve.points, proposal.sizes, strict=True)
        ]  # fmt: skip
    return [
        _Line(trial.policy.max_batch_work, curve.full(trial.policy), curve.full(trial.policy, SLOW),
              trial.capacity, trial.max_rate, len(curve.line.ratios))
        for trial in proposal.sizes
    ]  # fmt: skip


def as_data(task: str, device: str, curve: Curve, proposal: Proposal) -> dict[str, Any]:
    """Return what `show` prints, and more, as plain data."""
    chosen = proposal.chosen
    line = None if curve.line is None else {"a": curve.line.a, "b": curve.line.b}
    return {
        "task": task,
        "device": device,
        "latency": proposal.latency,
        "rate": proposal.rate,
        "sizes": [each._asdict() for each in _lines(curve, proposal)],
        "cost": line,
        "cap": curve.cap,
        "meets": chosen.meets,
        "max_rate": chosen.max_rate,
        "doubt": about_messages(proposal),
        "settings": _settings(chosen.policy),
        "forecast": asdict(chosen.forecast),
    }


def _settings(policy: BatchPolicy) -> dict[str, Any]:
    """Return the options that are proposed."""
    size: dict[str, Any] = {"max_batch_size": policy.max_batch_size}
    if policy.max_batch_cost is not None:
        size = {"max_batch_cost": policy.max_batch_cost}
    window = {"sort_window": policy.sort_window} if policy.padded else {}
    return {**size, **window, "max_wait": policy.max_wait, "linger": policy.linger}


def _table(curve: Curve, proposal: Proposal, width: int) -> Iterator[str]:
    """Yield lines: columns of numbers, and a bar each if there is room."""
    found = _lines(curve, proposal)
    most, single = max(each.rate for each in found), curve.points[0].rate
    first = "batch" if curve.line is None else "cost"
    rows = [(first, *_HEAD), *(_cells(each, single) for each in found)]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    room = width - sum(each + len(_GAP) for each in widths) - 1
    longest = min(room, _LONGEST_BAR) if room >= _SHORTEST_BAR else 0
    bars = ["items/s" if longest else "", *(_bar(each.rate / most, longest) for each in found)]
    size = f"{proposal.chosen.policy.max_batch_work:g}"
    for cells, bar in zip(zip(*columns, strict=True), bars, strict=True):
        padded = (cell.rjust(each) for cell, each in zip(cells, widths, strict=True))
        line = f" {_GAP.join([*padded, bar])}".rstrip()
        yield click.style(line, bold=True) if cells[0] == size else line


def _cells(line: _Line, single: float) -> Sequence[str]:
    return (
        f"{line.size:g}",
        figure(line.p50),
        figure(line.p95),
        number(line.rate),
        f"{line.rate / single:.1f}",
        number(line.max_rate),
        "" if line.memory is None else f"{line.memory / _GIB:.2f} GiB",
    )


def _bar(share: float, longest: int) -> str:
    eighths = round(share * longest * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def draw(path: Path, title: str, curve: Curve, proposal: Proposal) -> None:
    """Plot throughput and latency by batch size into a file."""
    lines = _lines(curve, proposal)
    with plotted(path, title) as (left, right):
        _plot_throughput(left, lines, proposal)
        _plot_latency(right, lines, proposal)
        for axes in (left, right):
            _style(axes, lines, proposal)
            label = "items in a batch" if curve.line is None else "max_batch_cost"
            axes.set_xlabel(label, fontsize=9)


def _plot_throughput(axes: Any, lines: Sequence[_Line], proposal: Proposal) -> None:
    sizes, rates = [line.size for line in lines], [line.rate for line in lines]
    within = [line.max_rate for line in lines]
    latency = figure(proposal.latency)
    axes.plot(sizes, rates, "o-", color=PLAIN, label="items a second, batch after batch")
    axes.plot(sizes, within, "s--", color=FOCUS, label=f"requests a second within {latency}")
    size = proposal.chosen.policy.max_batch_work
    axes.annotate(
        f"proposed: {size:g}", (size, 0.02), xycoords=("data", "axes fraction"),
        rotation=90, ha="center", va="bottom", fontsize=8, color=FOCUS,
    )  # fmt: skip
    axes.set_title("What one process answers in a second", fontsize=10)
    axes.set_ylim(bottom=0, top=1.35 * max(rates))
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")


def _plot_latency(axes: Any, lines: Sequence[_Line], proposal: Proposal) -> None:
    sizes, target = [line.size for line in lines], proposal.latency
    usual, slow = [line.p50 for line in lines], [line.p95 for line in lines]
    axes.plot(sizes, usual, "o-", color=PLAIN, label="one batch (shaded: up to p95)")
    axes.fill_between(sizes, usual, slow, color=PLAIN, alpha=0.2, linewidth=0)
    crowded = [2 * seconds for seconds in usual]
    axes.plot(sizes, crowded, "s--", color=FOCUS, label="just missed one, and then its own")
    axes.axhline(target, color=LIMIT, linestyle=":", label=f"target, {figure(target)}")
    axes.set_title("How long it takes", fontsize=10)
    axes.set_yscale("log")
    # With room for the legend.
    axes.set_ylim(top=8 * max(target, *slow, *crowded))
    axes.yaxis.set_major_formatter(lambda seconds, _: figure(seconds))


def _style(axes: Any, lines: Sequence[_Line], proposal: Proposal) -> None:
    sizes = [line.size for line in lines]
    size = proposal.chosen.policy.max_batch_work
    axes.axvline(size, color=FOCUS, alpha=0.25, linewidth=8, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{each:g}" for each in sizes])
    finish_axes(axes)
