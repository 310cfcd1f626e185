"""The verdicts as a table for people, and as JSON for whatever comes next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.faults.verdict import Verdict

__all__ = ["table", "write_json"]

_COUNTS = ("lost", "hung", "wrong", "repeated", "left", "excused")


def table(verdicts: Sequence[Verdict]) -> Table:
    """Return one row for each fault and broker, its counts summed over the seeds."""
    shown = Table(title="Faults under load", title_justify="left")
    shown.add_column("fault")
    shown.add_column("broker")
    headings = (
        "seeds",
        "items",
        "lost",
        "hung",
        "wrong",
        "run again",
        "left",
        "run again, excused",
    )
    for heading in (*headings, "recovery s, median", "max"):
        shown.add_column(heading, justify="right")
    for (fault, broker), group in _grouped(verdicts).items():
        counts = [sum(getattr(one, name) for one in group) for name in _COUNTS]
        times = [one.recovery for one in group if one.recovery is not None]
        recovery = [f"{median(times):.1f}", f"{max(times):.1f}"] if times else ["-", "-"]
        items = sum(one.accepted for one in group)
        style = None if all(one.ok for one in group) else "bold red"
        shown.add_row(
            fault, broker, str(len(group)), str(items), *map(str, counts), *recovery, style=style
        )
    return shown


def write_json(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write every verdict of every seed, notes included."""
    path.write_text(json.dumps([{**asdict(one), "ok": one.ok} for one in verdicts], indent=1))


def _grouped(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for one in verdicts:
        groups.setdefault((one.fault, one.broker), []).append(one)
    return groups
