"""Requests that come when they come, whatever the worker does."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["quantile", "send"]


def send(
    task: Any, items: Sequence[Any], arrivals: Sequence[float]
) -> tuple[list[float], list[Any]]:
    """Send each item after so many seconds; return how long each took, and the results."""
    times, left = [0.0] * len(items), threading.Semaphore(0)

    def note(number: int, due: float) -> None:
        times[number] = time.monotonic() - due
        left.release()

    # A full collection of all that a benchmark has imported takes 40 ms, in which nothing is sent.
    gc.collect()
    gc.freeze()
    results = []
    began = time.monotonic() + 0.1
    for number, (item, arrival) in enumerate(zip(items, arrivals, strict=True)):
        due = began + arrival
        time.sleep(max(due - time.monotonic(), 0.0))
        results.append(task.delay(item))
        future = results[-1].future()
        future.add_done_callback(lambda _, number=number, due=due: note(number, due))
    if not all(left.acquire(timeout=60) for _ in items):
        raise RuntimeError(f"{task.name}: some of {len(items)} requests have no result")
    return times, results


def quantile(times: Sequence[float], share: float) -> float:
    """Return a quantile, from 0 for the shortest to 1 for the longest."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]
