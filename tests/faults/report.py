"""The verdicts as a table for people, and as JSON for whatever comes next."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.faults.verdict import Verdict

__all__ = ["markdown", "read_json", "table", "write_json"]

_HEADINGS = (
    "fault",
    "broker",
    "processes",
    "trials",
    "items",
    "lost",
    "hung",
    "wrong",
    "run again",
    "left",
    "excused",
    "recovery, median s",
    "max",
)
_COUNTS = ("accepted", "lost", "hung", "wrong", "repeated", "left", "excused")


def table(verdicts: Sequence[Verdict]) -> Table:
    """Return a row for each fault, broker and number of pool processes, summed over the seeds."""
    shown = Table(title="Faults under load", title_justify="left")
    for heading in _HEADINGS:
        shown.add_column(heading, justify="left" if heading in ("fault", "broker") else "right")
    for group in _grouped(verdicts):
        shown.add_row(*_row(group), style=None if all(one.ok for one in group) else "bold red")
    return shown


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the same table for the documents."""
    rows = [_HEADINGS, ["---"] * 2 + ["---:"] * (len(_HEADINGS) - 2)]
    rows += [_row(group) for group in _grouped(verdicts)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_json(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write every verdict of every seed, notes included."""
    path.write_text(json.dumps([{**asdict(one), "ok": one.ok} for one in verdicts], indent=1))


def read_json(paths: Sequence[Path]) -> list[Verdict]:
    """Read back what `write_json` has written."""
    found = [entry for path in paths for entry in json.loads(path.read_text())]
    names = {field.name for field in fields(Verdict)}
    return [Verdict(**{name: entry[name] for name in names & entry.keys()}) for entry in found]


def _row(group: Sequence[Verdict]) -> list[str]:
    counts = [sum(getattr(one, name) for one in group) for name in _COUNTS]
    times = [one.recovery for one in group if one.recovery is not None]
    recovery = [f"{median(times):.1f}", f"{max(times):.1f}"] if times else ["-", "-"]
    first = group[0]
    shape = [first.fault, first.broker, str(first.processes), str(len(group))]
    return [*shape, *map(str, counts), *recovery]


def _grouped(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    groups: dict[tuple[str, str, int], list[Verdict]] = {}
    for one in verdicts:
        groups.setdefault((one.fault, one.broker, one.processes), []).append(one)
    return list(groups.values())


if __name__ == "__main__":
    print(markdown(read_json([Path(name) for name in sys.argv[1:]])))  # noqa: T201
