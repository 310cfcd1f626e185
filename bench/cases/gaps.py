"""
How long the device stands idle between two batches while work is queued.

The model itself takes the times, so the gap is everything that is not the model:
unpickling, tracers, results, and the way to and from the pool process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import broker, running
from bench.servers.testbed import cpu_of

__all__ = ["CASE"]

_TASKS = 6400

#: Batches at each end that are not counted: the queue fills, and runs empty.
_EDGE = 5


def _measure(effort: Effort) -> dict[str, Any]:
    tasks = effort.items(_TASKS)
    ways = [(calls, overlap) for calls in (1, 4) for overlap in (False, True)]
    with broker():
        rounds = [
            [_drain(tasks, calls=calls, overlap=overlap) for calls, overlap in ways]
            for _ in range(effort.rounds)
        ]
    rows = [
        {**row[0], **{name: statistics.median(each[name] for each in row) for name in _FIGURES}}
        for row in zip(*rounds, strict=True)
    ]
    return {"rows": rows}


def _drain(tasks: int, *, calls: int, overlap: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        os.environ.update(
            BENCH_TIMES=str(times), BENCH_CALLS=str(calls), BENCH_OVERLAP="1" if overlap else ""
        )
        with running("--concurrency=1", "-Q", "timed") as stack:
            before = _cpu(stack.worker.pid)
            for result in stack.app.tasks["bench.timed"].delay_many(list(range(tasks))):
                result.get(timeout=300)
            used = [
                after - earlier
                for after, earlier in zip(_cpu(stack.worker.pid), before, strict=True)
            ]
        spans = sorted(tuple(map(float, line.split())) for line in times.read_text().splitlines())
    consumer, child = (seconds / tasks for seconds in used)
    way = {"calls": calls, "overlap": overlap, "consumer": consumer, "child": child}
    return way | _look_at(spans[_EDGE:-_EDGE])


#: What is measured, and of which the median round is shown.
_FIGURES = ("p50", "p99", "busy", "rate", "consumer", "child")


def _look_at(spans: list[tuple[float, ...]]) -> dict[str, float]:
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    total = spans[-1][1] - spans[0][0]
    return {
        "p50": statistics.median(gaps),
        "p99": statistics.quantiles(gaps, n=100)[98],
        "busy": sum(end - begin for begin, end, _ in spans) / total,
        "rate": sum(size for _, _, size in spans) / total,
    }


def _cpu(pid: int) -> list[float]:
    """Return the CPU seconds of the consumer process and of its pool process."""
    server = next(each for each in psutil.Process(pid).children(recursive=True) if each.children())
    (child,) = server.children()
    return [cpu_of(process) for process in (server, child)]


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            f"{row['calls']} x cost, {'overlapping' if row['overlap'] else 'one after another'}",
            f"{1000 * row['p50']:.2f}",
            f"{1000 * row['p99']:.2f}",
            f"{row['busy']:.3f}",
            f"{row['rate']:.0f}",
            f"{1000 * row['consumer']:.3f}",
            f"{1000 * row['child']:.3f}",
        )
        for row in data["rows"]
    ]
    headings = ("model", "gap p50", "gap p99", "busy", "items/s", "consumer CPU", "child CPU")
    note = "With one call a batch the consumer process is at its limit, with four it is not."
    title = "The device between two batches of 64, work queued (milliseconds; CPU per task)"
    return [ResultTable(title, headings, rows, (note,))]


def _goals(data: dict[str, Any]) -> list[Goal]:
    (row,) = [row for row in data["rows"] if row["overlap"] and row["calls"] == 1]
    return [
        Goal("idle gap, median", 1000 * row["p50"], 1.0, unit=" ms", most=True),
        Goal("idle gap, p99", 1000 * row["p99"], 3.0, unit=" ms", most=True),
    ]


CASE = Case("gaps", "how long the device waits between two batches", _measure, _sheets, _goals)
