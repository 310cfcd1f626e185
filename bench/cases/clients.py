"""1 to 1,000 clients that each wait for their answer: batch sizes and latencies."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.reports.tables import Case, Effort, ResultTable, spread
from bench.servers.testbed import SystemProcess, testbed

__all__ = ["CASE"]

#: Clients, and how many items each asks for in a round.
_CROWDS = {1: 60, 10: 40, 100: 15, 1_000: 3}

#: With batches of one, for comparison.
_NAIVE = (64, 4)


def _measure(effort: Effort) -> dict[str, Any]:
    rows = []
    with testbed() as bed, bed.systems(["ours"], "cost") as systems:
        system = systems["ours"]
        for how in ("threads", "coroutines"):
            for clients, each in _CROWDS.items():
                if clients <= effort.items(max(_CROWDS)):
                    rows.append(
                        _row(system, effort, {"how": how, "clients": clients, "each": each})
                    )
        clients, each = _NAIVE
        naive = {"how": "threads", "clients": clients, "each": each, "naive": True}
        rows.append(_row(system, effort, naive))
    return {"rows": rows}


def _row(system: SystemProcess, effort: Effort, options: dict[str, Any]) -> dict[str, Any]:
    system.ask("closed_loop", **{**options, "each": 1})
    rounds = [system.ask("closed_loop", **options) for _ in range(effort.rounds)]
    figures = {
        name: median(one[name] for one in rounds) for name in ("rate", "p50", "p99", "mean_batch")
    }
    rates = [one["rate"] for one in rounds]
    return {**options, **figures, "rates": rates, "reasons": rounds[-1]["reasons"]}


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = []
    for row in data["rows"]:
        reasons = ", ".join(f"{count} {name}" for name, count in sorted(row["reasons"].items()))
        rows.append(
            (
                row["how"] + (", batches of one" if row.get("naive") else ""),
                f"{row['clients']:,}",
                f"{row['rate']:,.0f}",
                spread(row.get("rates", [])),
                f"{row['mean_batch']:.1f}",
                f"{1000 * row['p50']:.0f}",
                f"{1000 * row['p99']:.0f}",
                reasons,
            )
        )
    headings = (
        "",
        "clients",
        "items/s",
        "slowest to fastest",
        "mean batch",
        "p50 ms",
        "p99 ms",
        "why batches left",
    )
    return [ResultTable('"cost", clients in a closed loop, max_wait=0.1', headings, rows)]


CASE = Case("clients", "1 to 1,000 clients in a closed loop", _measure, _sheets)
