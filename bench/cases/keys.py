"""
Batches by key: how many items a second, how large the batches are, and how long the last waits.

The model sleeps where a GPU would compute.  Keys are drawn at random, each as likely.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import psutil

from bench.open_loop import quantile, send
from bench.policies.loads import LOADS
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import Stack, broker, running
from bench.servers.testbed import cpu_of
from celery_batch.tuning.load_test import mean_batch_size

__all__ = ["CASE"]

_KEYS = (1, 10, 1_000, 10_000)

#: Items of a backlog; and those that come in a second, for so many seconds.
_ITEMS, _RATE, _SECONDS = 8192, 150.0, 10.0

#: Items of the short drains by which the CPU is compared, and seconds of them for each round.
_SHORT, _SECONDS_A_ROUND = 512, 10.0

#: The least number of comparisons of each backlog.
_LEAST = 3

#: Rows of the largest batch of these tasks.
_SIZE = 32

#: The task and the number of keys of each backlog.
_BACKLOGS = {
    "no keys, no cost": ("unkeyed", 1),
    "cost, no keys": ("costed", 1),
    **{f"{keys:,} keys" if keys > 1 else "1 key": ("keyed", keys) for keys in _KEYS},
    "10 keys, cost": ("keyed_costed", 10),
}

#: Microseconds that keys and costs may take of the worker's main process for each item.
_MOST_CPU = 10.0


def _measure(effort: Effort) -> dict[str, Any]:
    count = effort.items(_ITEMS)
    with broker(), running("--concurrency=1", "-Q", "bench-keys") as stack:
        rows = [
            {
                "name": name,
                **_drain(stack, *backlog, count),
                "extra": _extra(stack, *backlog, effort),
            }
            for name, backlog in _BACKLOGS.items()
        ]
        loads = [_load(stack, keys, effort.share) for keys in _KEYS]
    return {"rows": rows, "loads": loads}


def _extra(stack: Stack, name: str, keys: int, effort: Effort) -> float:
    """
    Return the CPU of an item beyond that of one without key and cost, in batches as large.

    The speed of a machine changes within a minute by more than what is looked for.  So short
    drains are each compared with those just before and after it, whose batches are the next
    smaller and larger, and the median of many comparisons counts.
    """
    count = effort.items(_SHORT)
    size = min(max(_drain(stack, name, keys, count)["size"], 1.0), float(_SIZE))
    smaller, larger = math.floor(size), math.ceil(size)
    ratios: list[float] = []
    plains: list[float] = []
    end = time.monotonic() + effort.rounds * effort.share * _SECONDS_A_ROUND
    while len(ratios) < _LEAST or time.monotonic() < end:
        before = _plain(stack, smaller, count)
        drain = _drain(stack, name, keys, count)
        after = _plain(stack, larger, count)
        plains.append(_between(drain["size"], (smaller, before), (larger, after)))
        ratios.append(drain["cpu"] / plains[-1])
    _configure(stack, _SIZE)
    return statistics.median(plains) * (statistics.median(ratios) - 1)


def _plain(stack: Stack, size: int, count: int) -> float:
    """Return the CPU of an item without key and cost, in batches of a size."""
    _configure(stack, size)
    return float(_drain(stack, "unkeyed", 1, count)["cpu"])


def _between(size: float, smaller: tuple[int, float], larger: tuple[int, float]) -> float:
    """Return the CPU of an item in batches of a mean size, of which a part is the batch's."""
    if smaller[0] == larger[0]:
        return (smaller[1] + larger[1]) / 2
    share = (1 / size - 1 / larger[0]) / (1 / smaller[0] - 1 / larger[0])
    return share * smaller[1] + (1 - share) * larger[1]


def _configure(stack: Stack, size: int) -> None:
    words = ["bench.unkeyed"]
    stack.app.control.broadcast(
        "batch_config", {"words": words, "max_batch_size": size}, reply=True, limit=1
    )


def _items(keys: int, count: int, seed: int) -> list[tuple[int, str]]:
    draw = random.Random(seed)
    return [(n, f"key {draw.randrange(keys)}") for n in range(count)]


def _drain(stack: Stack, name: str, keys: int, count: int) -> dict[str, Any]:
    """Send all items at once; return how fast they were answered, and what that took."""
    task, items = stack.app.tasks[f"bench.{name}"], _items(keys, count, keys)
    (consumer,) = psutil.Process(stack.worker.pid).children()
    cpu, began = cpu_of(consumer), time.monotonic()
    results = task.apply_many([(item, None) for item in items])
    outputs = [result.get(timeout=600) for result in results]
    seconds, cpu = time.monotonic() - began, cpu_of(consumer) - cpu
    _check(items, outputs, has_keys=name.startswith("keyed"))
    return {
        "rate": count / seconds,
        "size": mean_batch_size([each.batch_info.size for each in results]),
        "cpu": 1e6 * cpu / count,
    }


def _load(stack: Stack, keys: int, share: float) -> dict[str, Any]:
    """Send items one by one, when they come independently at a rate."""
    task = stack.app.tasks["bench.keyed"]
    requests = list(LOADS["Poisson"](_RATE, max(int(_RATE * _SECONDS * share), 10), 2))
    items = _items(keys, len(requests), 2)
    call = SimpleNamespace(name=task.name, delay=lambda item: task.delay(*item))
    times, results = send(call, items, [request.arrived for request in requests])
    _check(items, [result.get(timeout=60) for result in results], has_keys=True)
    return {
        "keys": keys,
        "rate": len(items) / (requests[-1].arrived + times[-1]),
        "size": mean_batch_size([each.batch_info.size for each in results]),
        **{f"p{n}": quantile(times, n / 100) for n in (50, 99)},
        "worst": max(times),
    }


def _check(items: Sequence[tuple[int, str]], outputs: Sequence[Any], *, has_keys: bool) -> None:
    for (value, key), output in zip(items, outputs, strict=True):
        if output != [2 * value, key if has_keys else None]:
            raise RuntimeError(f"{value} of {key!r} was answered with {output!r}")


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            row["name"],
            f"{row['rate']:.0f}",
            f"{row['size']:.1f}",
            f"{row['cpu']:.0f}",
            f"{row['extra']:+.1f}",
        )
        for row in data["rows"]
    ]
    loads = [
        (
            f"{row['keys']:,}",
            f"{row['rate']:.0f}",
            f"{row['size']:.2f}",
            *(f"{1000 * row[key]:.0f}" for key in ("p50", "p99", "worst")),
        )
        for row in data["loads"]
    ]
    notes = (
        "A call takes 2 ms, and 0.1 ms for each item; max_batch_size=32.",
        "CPU is that of the worker's main process, in microseconds for each item.",
        "The last column is what that is more than without keys and cost, in batches of as many.",
        f"It is the median of drains of {_SHORT:,} items in turns.",
    )
    return [
        ResultTable(
            "A backlog of items with random keys",
            ("backlog", "items/s", "items a batch", "CPU", "CPU of keys or cost"),
            rows,
            notes,
        ),
        ResultTable(
            f"Such items one by one, {_RATE:g} a second",
            ("keys", "items/s", "items a batch", "p50", "p99", "longest"),
            loads,
            ("Milliseconds from sending to the result.",),
        ),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    most = max(row["extra"] for row in data["rows"])
    held = min(row["rate"] for row in data["loads"]) / _RATE
    return [
        Goal("CPU of keys and cost for each item", most, _MOST_CPU, unit=" us", most=True),
        Goal("rate with any number of keys, of what came", held, 0.9),
    ]


CASE = Case(
    "keys", "1 to 10,000 keys, of which a batch has one", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
