"""What was measured and what is proposed, for people and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.tuning.curve import MIDDLE, SLOW, Curve
from celery_batch.tuning.propose import Proposal, Trial
from celery_batch.tuning.words import (
    about_carrying,
    about_scatter,
    about_size,
    about_target,
    about_wait,
    figure,
    number,
)

__all__ = ["as_data", "show"]

#: What is proposed.
_SETTINGS = ("max_batch_size", "max_wait", "linger")

#: Characters of the longest bar.
_LONGEST_BAR = 20

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

    Raises:
        ConfigurationError: rich is not installed.
    """
    try:
        from rich.console import Console  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ConfigurationError(
            "the table needs rich; pip install 'celery-batch[tune]', or ask for --json"
        ) from None
    console = Console(highlight=False)
    console.print(_table(task, device, curve, proposal))
    if curve.cap:
        console.print(f"No larger ones: {curve.cap}.", markup=False)
    if doubt := about_scatter(curve):
        console.print(doubt, markup=False)
    console.print()
    wanted = f"99 of 100 requests within {figure(proposal.goal.latency)}"
    console.print(f"Wanted: {wanted}, at {number(proposal.rate)} a second.", markup=False)
    console.print(about_target(curve, proposal), "", markup=False)
    console.print(f"  {settings(proposal)}", "", style="bold", markup=False)
    console.print(f"max_batch_size: {about_size(curve, proposal)}", markup=False)
    if limit := about_carrying(proposal):
        console.print(limit, markup=False)
    console.print(f"max_wait, linger: {about_wait(curve, proposal)}", markup=False)


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


def _table(task: str, device: str, curve: Curve, proposal: Proposal) -> Any:
    from rich.table import Table  # noqa: PLC0415 (an extra)

    has_memory = any(point.memory is not None for point in curve.points)
    table = Table(title=f"{task} on {device}", title_justify="left", box=None, padding=(0, 1))
    names = ["batch", "p50 s", "p95 s", "items/s", "speed-up", "in time/s"]
    for name in [*names, *(["memory"] if has_memory else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("items/s", no_wrap=True)
    most = max(point.rate for point in curve.points)
    for point, trial in zip(curve.points, proposal.sizes, strict=True):
        cells = [
            str(point.size),
            number(point.quantile(MIDDLE)),
            number(point.quantile(SLOW)),
            number(point.rate),
            f"{point.rate / curve.points[0].rate:.1f}",
            number(trial.bears),
            *([_memory(point.memory)] if has_memory else []),
            _bar(point.rate / most),
        ]
        table.add_row(*cells, style="bold" if _is_chosen(trial, proposal) else "")
    return table


def _is_chosen(trial: Trial, proposal: Proposal) -> bool:
    return trial.policy.max_batch_size == proposal.chosen.policy.max_batch_size


def _memory(amount: int | None) -> str:
    return "" if amount is None else f"{amount / _GIB:.2f} GiB"


def _bar(share: float) -> str:
    eighths = round(share * _LONGEST_BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
