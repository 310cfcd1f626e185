"""A lone request on each of Celery's pools: what an idle worker adds to the model's own time."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from bench.stack import broker, running
from bench.tables import Case, Effort, ResultTable

__all__ = ["CASE"]

_REQUESTS = 200
_WARM_UP = 20

POOLS = {
    "prefork": ("--concurrency=1",),
    "solo": ("--pool=solo",),
    "threads": ("--pool=threads", "--concurrency=1"),
}

_OWN = {"noop": 0.0, "cost": 0.0101}


def _measure(effort: Effort) -> dict[str, Any]:
    rows = []
    with broker():
        for pool, options in POOLS.items():
            with running(*options) as stack:
                for name, own in _OWN.items():
                    times = _ask(stack.app.tasks[f"bench.{name}"], effort.items(_REQUESTS))
                    p99 = times[int(len(times) * 0.99)]
                    row = {"pool": pool, "task": name, "own": own, "p50": median(times)}
                    rows.append({**row, "p99": p99})
    return {"rows": rows}


def _ask(task: Any, n: int) -> list[float]:
    times = []
    for number in range(n + _WARM_UP):
        started = time.perf_counter()
        task.delay(number).get(timeout=30)
        times.append(time.perf_counter() - started)
    return sorted(times[_WARM_UP:])


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            row["pool"],
            row["task"],
            *(f"{1000 * row[name]:.1f}" for name in ("own", "p50", "p99")),
            f"{1000 * (row['p50'] - row['own']):.1f}",
        )
        for row in data["rows"]
    ]
    headings = ("pool", "model", "model's own", "p50", "p99", "p50 above the model")
    return [ResultTable("A lone request on each pool, max_wait=0.1 (milliseconds)", headings, rows)]


CASE = Case(
    "pools", "a lone request on prefork, solo and threads", _measure, _sheets, by_default=False
)
