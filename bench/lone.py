"""A lone request: what an idle worker adds to the model's own time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.model import CALL_SECONDS, ITEM_SECONDS
from bench.stack import running

__all__ = ["Lone", "measure"]

_REQUESTS = 200
_WARM_UP = 20

POOLS = {
    "prefork": ("--concurrency=1",),
    "solo": ("--pool=solo",),
    "threads": ("--pool=threads", "--concurrency=1"),
}


@dataclass(frozen=True, slots=True)
class Lone:
    """
    One row of the table, in seconds.

    Args:
        pool: Celery's pool.
        task: What was asked.
        own: The model's own time.
        p50: Median of ``delay().get()``.
        p99: Its 99th percentile.
    """

    pool: str
    task: str
    own: float
    p50: float
    p99: float


def measure() -> list[Lone]:
    """Send one request at a time to an idle worker, on each pool, with ``max_wait=0.1``."""
    rows = []
    for pool, options in POOLS.items():
        with running(*options) as stack:
            for name, own in (("bench.echo", 0.0), ("bench.batched", CALL_SECONDS + ITEM_SECONDS)):
                times = _ask(stack.app.tasks[name])
                p99 = times[int(len(times) * 0.99)]
                rows.append(Lone(pool, name.removeprefix("bench."), own, median(times), p99))
    return rows


def _ask(task: Any) -> list[float]:
    times = []
    for number in range(_REQUESTS + _WARM_UP):
        started = time.perf_counter()
        task.delay(number).get(timeout=30)
        times.append(time.perf_counter() - started)
    return sorted(times[_WARM_UP:])
