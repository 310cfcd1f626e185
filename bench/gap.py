"""
How long the device stands idle between two batches while work is queued.

The model itself takes the times, so the gap is everything that is not the model:
unpickling, tracers, results, and the way to and from the pool process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
        overlap: Whether batches were settled while the next one's model ran.
        p50: Median of the idle gaps in seconds.
        p99: Their 99th percentile in seconds.
        share: Of the time, how much the model ran.
        rate: Tasks per second.
        cpu: CPU seconds a task: the consumer process, and the pool process.
    """

    overlap: bool
    p50: float
    p99: float
    share: float
    rate: float
    cpu: tuple[float, float]


def measure(tasks: int = 6400) -> list[Gap]:
    """
    Drain a full queue, one batch after another and with batches that overlap.

    Args:
        tasks: How many tasks are queued for each.
    """
    return [_drain(tasks, overlap=overlap) for overlap in (False, True)]


def _drain(tasks: int, *, overlap: bool) -> Gap:
    with _recorded() as times, _setting(overlap=overlap):
        results = group(app.tasks["bench.timed"].s(n) for n in range(tasks)).apply_async()
        with running("--concurrency=1", "-Q", "timed") as stack:
            results[-1].get(timeout=300)
            results.get(timeout=300)
            cpu = _cpu(stack.worker.pid, tasks)
        results.forget()
        spans = sorted(tuple(map(float, line.split())) for line in times.read_text().splitlines())
    return _gap(spans[_EDGE:-_EDGE], overlap, cpu)


def _gap(spans: list[tuple[float, ...]], overlap: bool, cpu: tuple[float, float]) -> Gap:  # noqa: FBT001
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    total = spans[-1][1] - spans[0][0]
    busy = sum(end - begin for begin, end, _ in spans)
    return Gap(
        overlap=overlap,
        p50=statistics.median(gaps),
        p99=statistics.quantiles(gaps, n=100)[98],
        share=busy / total,
        rate=sum(size for _, _, size in spans) / total,
        cpu=cpu,
    )


def _cpu(pid: int, tasks: int) -> tuple[float, float]:
    server = next(each for each in psutil.Process(pid).children(recursive=True) if each.children())
    (child,) = server.children()
    used = [sum(process.cpu_times()[:2]) / tasks for process in (server, child)]
    return used[0], used[1]


@contextmanager
def _recorded() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_TIMES"] = str(Path(folder) / "times")
        yield Path(folder) / "times"


@contextmanager
def _setting(*, overlap: bool) -> Iterator[None]:
    os.environ["BENCH_OVERLAP"] = "1" if overlap else ""
    yield
    del os.environ["BENCH_OVERLAP"]
