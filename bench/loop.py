"""64 threads in a closed loop: the same worker with batches of 64 and with batches of one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.stack import Stack, running

__all__ = ["Loop", "measure"]

_THREADS = 64
_ROUNDS = 3

#: Requests per thread: enough for a few seconds of either.
_EACH = {"bench.naive": 8, "bench.batched": 40}


@dataclass(frozen=True, slots=True)
class Loop:
    """
    One row of the table.

    Args:
        task: What was asked.
        rate: Requests per second.
        p50: Median seconds from `delay` to the result.
        p99: The 99th percentile.
        mean_batch: Requests per model call.
        reasons: Why the batches formed.
    """

    task: str
    rate: float
    p50: float
    p99: float
    mean_batch: float
    reasons: dict[str, int]


def measure() -> list[Loop]:
    """Interleave rounds of both tasks on one worker; return the median round of each."""
    rounds: dict[str, list[Loop]] = {name: [] for name in _EACH}
    with running("--concurrency=1") as stack:
        for _ in range(_ROUNDS):
            for name, rows in rounds.items():
                rows.append(_one_round(stack, name))
    return [_middle(rows) for rows in rounds.values()]


def _middle(rows: list[Loop]) -> Loop:
    middle = median(row.rate for row in rows)
    return next(row for row in rows if row.rate == middle)


def _one_round(stack: Stack, name: str) -> Loop:
    task = stack.app.tasks[name]
    before = stack.status()[name]
    times: list[float] = []
    started = time.perf_counter()
    threads = [threading.Thread(target=_ask, args=(task, times)) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    after = stack.status()[name]
    times.sort()
    requests = after["requests"] - before["requests"]
    return Loop(
        task=name.removeprefix("bench."),
        rate=len(times) / seconds,
        p50=median(times),
        p99=times[int(len(times) * 0.99)],
        mean_batch=requests / (after["batches"] - before["batches"]),
        reasons=dict(Counter(after["reasons"]) - Counter(before["reasons"])),
    )


def _ask(task: Any, times: list[float]) -> None:
    for number in range(_EACH[task.name]):
        started = time.perf_counter()
        if task.delay(number).get(timeout=60) != 2 * number:
            raise AssertionError(number)
        times.append(time.perf_counter() - started)
