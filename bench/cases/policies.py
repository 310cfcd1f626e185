"""
The rules of several servers for the same requests, in virtual time.

One server computes batch after batch, each text padded to the longest of its batch; only the
rule differs that says which requests form the next one.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import product
from typing import Any

from bench.policies.loads import LOADS, seconds
from bench.policies.rules import RULES, has_infinity
from bench.reports.tables import Case, Effort, Goal, ResultTable
from celery_batch.tuning.simulate import run

__all__ = ["CASE"]

#: Requests of a load at one rate, and of a backlog: at all rates together, more than a million.
_REQUESTS, _BACKLOG = 200_000, 20_000

#: Parts of the capacity, which is the rate at which infinity's rule computes a backlog.
_PARTS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.2)

#: Those which the tables show, and that of the goals.
_SHOWN, _HIGH = (0.3, 0.6, 0.9), 0.9

#: At this rate the requests come at once.
_AT_ONCE = 1e9

_INFINITY, _OURS = "infinity, 32 rows", "ours, 2,048 tokens"


def _measure(effort: Effort) -> dict[str, Any]:
    count, backlog = effort.items(_REQUESTS), effort.items(_BACKLOG)
    with ProcessPoolExecutor(2) as pool:
        all_at_once = [(rule, load, _AT_ONCE, backlog) for load, rule in product(LOADS, RULES)]
        backlogs = list(pool.map(_simulated, all_at_once))
        capacity = {row["load"]: row["rate"] for row in backlogs if row["rule"] == _INFINITY}
        jobs = [
            (rule, load, part * capacity[load], count)
            for load, part, rule in product(LOADS, _PARTS, RULES)
        ]
        rows = list(pool.map(_simulated, jobs))
    for row in rows:
        row["part"] = round(row["offered"] / capacity[row["load"]], 3)
        row["keeps_up"] = row["offered"] < _row(backlogs, row["load"], row["rule"])["rate"]
    return {
        "rows": rows,
        "backlogs": backlogs,
        "requests": count,
        "infinity_emb": version("infinity_emb") if has_infinity() else None,
    }


def _simulated(job: tuple[str, str, float, int]) -> dict[str, Any]:
    """Return how one rule serves so many requests of a load at a rate."""
    name, load, offered, count = job
    requests = list(LOADS[load](offered, count, 1))
    times: list[float] = []
    padded = true = batches = 0
    ended = 0.0
    for batch, began, duration in run(RULES[name](), requests, seconds):
        ended = began + duration
        times += [ended - request.arrived for request in batch.requests]
        padded += max(batch.items) * len(batch)
        true += sum(batch.items)
        batches += 1
    times.sort()
    return {
        "rule": name,
        "load": load,
        "offered": offered,
        "rate": len(times) / ended,
        "p50": times[len(times) // 2],
        "p99": times[int(0.99 * len(times))],
        "worst": times[-1],
        "padding": padded / true,
        "batch_size": len(times) / batches,
        "refused": count - len(times),
    }


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    headings = ("rule", "backlog, items/s", "padded/true", *(f"at {part:g}" for part in _SHOWN))
    which = (
        f"the real queue of infinity_emb {data['infinity_emb']}"
        if data["infinity_emb"]
        else "its queue written anew"
    )
    notes = (
        "p50 / p99 / longest in milliseconds at parts of infinity's backlog rate, where the rule",
        f"can serve so many. {data['requests']:,} requests at each rate; of infinity, {which}.",
    )
    return [
        ResultTable(
            f"Rules in virtual time, {load} arrivals",
            headings,
            [_cells(data, load, rule) for rule in RULES],
            notes,
        )
        for load in LOADS
    ]


def _cells(data: dict[str, Any], load: str, rule: str) -> tuple[str, ...]:
    backlog = _row(data["backlogs"], load, rule)
    rows = [_row(data["rows"], load, rule, part) for part in _SHOWN]
    return (
        rule,
        f"{backlog['rate']:,.0f}",
        f"{backlog['padding']:.2f}",
        *(
            " / ".join(f"{1000 * row[key]:,.0f}" for key in ("p50", "p99", "worst"))
            if row["keeps_up"]
            else ""
            for row in rows
        ),
    )


def _row(rows: list[dict[str, Any]], load: str, rule: str, part: float = 0.0) -> dict[str, Any]:
    return next(
        row
        for row in rows
        if (row["load"], row["rule"], row.get("part", 0.0)) == (load, rule, part)
    )


def _goals(data: dict[str, Any]) -> list[Goal]:
    goals = []
    for load in LOADS:
        ours, infinity = (_row(data["backlogs"], load, rule) for rule in (_OURS, _INFINITY))
        of_infinity = "of infinity's"
        goals.append(
            Goal(f"{load}: backlog rate, {of_infinity}", ours["rate"] / infinity["rate"], 0.95)
        )
        ours, infinity = (_row(data["rows"], load, rule, _HIGH) for rule in (_OURS, _INFINITY))
        goals += [
            Goal(f"{load}, 0.9: {name} {of_infinity}", ours[key] / infinity[key], 1.0, most=True)
            for key, name in (("p99", "p99"), ("worst", "longest wait"))
        ]
    return goals


CASE = Case(
    "policies", "the rules of several servers, in virtual time", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
