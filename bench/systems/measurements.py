"""What is measured of a system; every answer is held against the right one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.models.reference import expected
from bench.systems.clients import closed_loop
from bench.systems.system import TIMEOUT, System

__all__ = ["MEASUREMENTS"]


def drain(system: System, n: int, *, singly: bool = False) -> dict[str, Any]:
    """Send n items, singly or in the fastest way, then wait for all of them."""
    items = range(n)
    busy, started = time.process_time(), time.perf_counter()
    waiting = [system.submit_one(item) for item in items] if singly else system.submit(items)
    sent = time.perf_counter()
    answers = system.collect(waiting)
    ended = time.perf_counter()
    _check(answers, expected(items))
    return {
        "n": n,
        "seconds": ended - started,
        "submit_seconds": sent - started,
        "client_cpu": time.process_time() - busy,
    }


def submit(system: System, n: int) -> dict[str, Any]:
    """Send n items one call at a time, and count the calls alone."""
    items = range(n)
    busy, started = time.process_time(), time.perf_counter()
    waiting = [system.submit_one(item) for item in items]
    seconds = time.perf_counter() - started
    busy = time.process_time() - busy
    _check(system.collect(waiting), expected(items))
    return {"n": n, "seconds": seconds, "client_cpu": busy}


def lone(system: System, n: int) -> dict[str, Any]:
    """Ask one item at a time, each when the one before is answered."""
    times = []
    for item in range(n):
        started = time.perf_counter()
        answers = system.collect([system.submit_one(item)])
        times.append(time.perf_counter() - started)
        _check(answers, expected(range(item, item + 1)))
    return {"n": n, "times": sorted(times)}


def chunk(system: Any, n: int, rows: int = 256) -> dict[str, Any]:
    """Send n rows as tasks of many rows each, then wait for all of them."""
    items = range(n)
    started = time.perf_counter()
    parts = [items[first : first + rows] for first in range(0, n, rows)]
    waiting = [system.task.delay_rows(list(part)) for part in parts]
    answers = [answer for each in waiting for answer in each.get(timeout=TIMEOUT)]
    seconds = time.perf_counter() - started
    _check(answers, expected(items))
    return {"n": n, "seconds": seconds}


def _check(answers: list[int], right: list[int]) -> None:
    if answers != right:
        wrong = [pair for pair in zip(answers, right, strict=False) if pair[0] != pair[1]]
        raise AssertionError(f"{len(answers)} answers to {len(right)}, wrong: {wrong[:5]}")


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "chunk": chunk,
    "closed_loop": closed_loop,
    "drain": drain,
    "lone": lone,
    "submit": submit,
}
