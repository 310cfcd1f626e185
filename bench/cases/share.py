"""
Two models in one pool process: how long a small one waits for a large one that is saturated.

Both sleep where a GPU would compute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.app import LARGE
from bench.open_loop import quantile, send
from bench.policies.virtual_worker import poisson
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import Stack, broker, running

__all__ = ["CASE"]

#: Requests a second of the small model, and the seconds for which they come.
_RATE, _SECONDS = 25.0, 12.0

#: Seconds for which two saturated models are observed.
_OBSERVED = 8.0

#: Items that keep a model busy for longer than it is observed.
_BACKLOG = {"large": 4096, "small": 40_000}

#: The shares of the small model beside a large one with a share of 1.
_SHARES = (1, 3)


def _measure(effort: Effort) -> dict[str, Any]:
    seconds = _SECONDS * max(effort.share, 0.25)
    rounds = []
    with broker():
        for _ in range(effort.rounds):
            with _worker() as stack:
                alone, _ = _observe(stack, seconds, _RATE)
            with _worker("large") as stack:
                _, most = _observe(stack, seconds / 2, 0.0)
            with _worker("large") as stack:
                shared, rest = _observe(stack, seconds, _RATE)
            rounds.append({
                "alone": alone,
                "shared": shared,
                "large alone": most["large"],
                "large": rest["large"],
                "small": rest["small"],
            })  # fmt: skip
        shares = [_both_saturated(share) for share in _SHARES]
    return {"rounds": rounds, "shares": shares, "batch": LARGE.call}


@contextmanager
def _worker(*saturated: str) -> Iterator[Stack]:
    """Run a worker with a backlog of these models."""
    with running("--concurrency=1", "-Q", "bench-large,bench-small") as stack:
        tasks = {name: stack.app.tasks[f"bench.{name}"] for name in _BACKLOG}
        for task in tasks.values():
            task.delay(0).get(timeout=30)
        for name in saturated:
            tasks[name].delay_many(list(range(_BACKLOG[name])))
        yield stack
    with stack.app.connection_for_write() as connection:
        for name in _BACKLOG:
            connection.default_channel.queue_purge(f"bench-{name}")


def _observe(stack: Stack, seconds: float, rate: float) -> tuple[list[float], dict[str, float]]:
    """
    Send requests to the small model at random times.

    Returns:
        How long they took, in seconds, and the share of the time that each model ran.
    """
    before, began = _device_seconds(stack), time.monotonic()
    arrivals = poisson(rate, 0.0, seconds, 7) if rate else []
    latencies, _ = send(stack.app.tasks["bench.small"], range(len(arrivals)), arrivals)
    time.sleep(max(began + seconds - time.monotonic(), 0.0))
    elapsed, after = time.monotonic() - began, _device_seconds(stack)
    return latencies, {name: (after[name] - before[name]) / elapsed for name in after}


def _device_seconds(stack: Stack) -> dict[str, float]:
    replies = stack.app.control.broadcast("batch_stats", reply=True, timeout=5.0, limit=1)
    (stats,) = replies[0].values()
    return {name: stats["tasks"][f"bench.{name}"]["model"]["seconds"] for name in _BACKLOG}


def _both_saturated(share: float) -> dict[str, float]:
    with _worker("large", "small") as stack:
        stack.app.control.broadcast(
            "batch_config", {"words": ["bench.small"], "device_share": share}, reply=True
        )
        _, found = _observe(stack, _OBSERVED, 0.0)
    return {"share": share, **found}


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows = []
    for name in ("alone", "shared"):
        latencies = [each for one in data["rounds"] for each in one[name]]
        large = "large alone" if name == "alone" else "large"
        rows.append((
            "small model alone" if name == "alone" else "beside a saturated large one",
            *(f"{1000 * quantile(latencies, share):.0f}" for share in (0.5, 0.99, 1.0)),
            f"{statistics.median(one[large] for one in data['rounds']):.3f}",
        ))  # fmt: skip
    note = f"{_RATE:g} requests/s; a batch of the large model takes {1000 * data['batch']:g} ms."
    headings = ("milliseconds", "p50", "p99", "worst", "large model: share of the time")
    shared = [
        (f"1 : {each['share']:g}", f"{each['large']:.3f}", f"{each['small']:.3f}")
        for each in data["shares"]
    ]
    return [
        ResultTable("A small model beside a saturated large one", headings, rows, (note,)),
        ResultTable(
            "Two saturated models: their shares of the time",
            ("device_share", "large", "small"),
            shared,
        ),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    p99 = {
        name: quantile([each for one in data["rounds"] for each in one[name]], 0.99)
        for name in ("alone", "shared")
    }
    ratio = {each["share"]: each["small"] / each["large"] for each in data["shares"]}
    busy = statistics.median(one["large"] + one["small"] for one in data["rounds"])
    added = (p99["shared"] - p99["alone"]) / data["batch"]
    return [
        Goal("p99 beside a saturated model, added", added, 1.0, unit=" batches", most=True),
        Goal("time that either model ran", busy, 0.95),
        *(
            Goal(f"device seconds, device_share={share}", ratio[share] / share, 0.95)
            for share in ratio
        ),
    ]


CASE = Case(
    "share", "a small model beside a large one in the same process", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
