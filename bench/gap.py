"""
How long the device stands idle between two batches while work is queued.

The model itself takes the times, so the gap is everything that is not the model:
unpickling, tracers, results, and the way to and from the pool process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from celery import group

from bench.app import app
from bench.stack import running

__all__ = ["Gap", "measure"]

#: Batches at each end that are not counted: the queue fills, and runs empty.
_EDGE = 5


@dataclass(frozen=True, slots=True)
class Gap:
    """
    What one drain of the queue has shown.

    Args:
        calls: Of the reference model for each batch; with one the consumer process is
            at its limit, with several the next batch is always there in time.
        overlap: Whether batches were settled while the next one's model ran.
        p50: Median of the idle gaps in seconds.
        p99: Their 99th percentile in seconds.
        share: Of the time, how much the model ran.
        rate: Tasks per second.
        consumer: CPU seconds a task in the consumer process.
        child: The same in the pool process.
    """

    calls: int
    overlap: bool
    p50: float
    p99: float
    share: float
    rate: float
    consumer: float
    child: float


def measure(tasks: int = 6400) -> list[Gap]:
    """
    Drain a full queue, one batch after another and with batches that overlap.

    Args:
        tasks: How many tasks are queued for each.
    """
    return [
        _drain(tasks, calls=calls, overlap=overlap) for calls in (1, 4) for overlap in (False, True)
    ]


def _drain(tasks: int, *, calls: int, overlap: bool) -> Gap:
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        os.environ.update(
            BENCH_TIMES=str(times), BENCH_CALLS=str(calls), BENCH_OVERLAP="1" if overlap else ""
        )
        results = group(app.tasks["bench.timed"].s(n) for n in range(tasks)).apply_async()
        with running("--concurrency=1", "-Q", "timed") as stack:
            results.get(timeout=300)
            consumer, child = _cpu(stack.worker.pid, tasks)
        results.forget()
        spans = sorted(tuple(map(float, line.split())) for line in times.read_text().splitlines())
    p50, p99, share, rate = _look_at(spans[_EDGE:-_EDGE])
    return Gap(calls, overlap, p50, p99, share, rate, consumer, child)


def _look_at(spans: list[tuple[float, ...]]) -> tuple[float, float, float, float]:
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    total = spans[-1][1] - spans[0][0]
    busy = sum(end - begin for begin, end, _ in spans)
    rate = sum(size for _, _, size in spans) / total
    return statistics.median(gaps), statistics.quantiles(gaps, n=100)[98], busy / total, rate


def _cpu(pid: int, tasks: int) -> tuple[float, float]:
    server = next(each for each in psutil.Process(pid).children(recursive=True) if each.children())
    (child,) = server.children()
    used = [sum(process.cpu_times()[:2]) / tasks for process in (server, child)]
    return used[0], used[1]
