"""Does a task cost the same with a thousand queued and with a million?"""

from __future__ import annotations

import itertools
import time
from statistics import median
from typing import Any

import psutil

from bench.queued_copies import QueuedCopies
from bench.reports.tables import Case, Effort, ResultTable, spread
from bench.servers.stack import broker, running
from bench.servers.testbed import cpu_of

__all__ = ["CASE"]

#: Queued tasks, and how often: what is short is measured more often.
_DEPTHS = {1_000: 9, 10_000: 3, 100_000: 1, 1_000_000: 1}

#: Of what is queued, at most so much is drained, since a task costs what it costs there.
_DRAINED = 100_000

#: Seconds between two looks at the queue, and between two at the memory.
_LOOK, _WEIGH = 0.02, 1.0


class _Weights:
    """The worker's processes and Redis: what they use."""

    def __init__(self, redis: Any, worker: Any) -> None:
        (self.server,) = psutil.Process(redis.child.pid).children()
        (self.consumer,) = psutil.Process(worker.pid).children()
        (self.pool,) = self.consumer.children()
        self.most = self.sizes()

    def sizes(self) -> list[int]:
        return [process.memory_full_info().uss for process in (self.consumer, self.pool)]

    def weigh(self) -> None:
        self.most = [max(pair) for pair in zip(self.most, self.sizes(), strict=True)]

    def cpu(self) -> list[float]:
        return [cpu_of(process) for process in (self.consumer, self.pool, self.server)]


def _measure(effort: Effort) -> dict[str, Any]:
    rows = []
    with broker() as redis, running("--concurrency=1") as stack:
        copies = QueuedCopies(stack.app.tasks["bench.noop"])
        series = itertools.count()

        def drain(depth: int) -> dict[str, Any]:
            weights = _Weights(redis, stack.worker)
            return _drain(copies, depth, min(depth, _DRAINED), next(series), weights)

        drain(effort.items(10_000))
        for depth, most in _DEPTHS.items():
            if depth <= effort.items(max(_DEPTHS)):
                times = min(most, 3 * effort.rounds)
                rows.append(_middle(depth, [drain(depth) for _ in range(times)]))
    return {"rows": rows}


def _drain(
    copies: QueuedCopies, depth: int, wanted: int, series: int, weights: _Weights
) -> dict[str, Any]:
    copies.lay(depth, series)
    before, first_sizes = weights.cpu(), weights.sizes()
    started = weighed = time.perf_counter()
    copies.release()
    looks, withdrawn = [(0.0, 0)], 0
    while left := copies.left():
        looks.append((time.perf_counter() - started, depth - left - withdrawn))
        if depth - left >= wanted and not withdrawn:
            withdrawn = copies.withdraw()
        if time.perf_counter() - weighed > _WEIGH:
            weights.weigh()
            weighed = time.perf_counter()
        time.sleep(_LOOK)
    seconds, done = time.perf_counter() - started, depth - withdrawn
    weights.weigh()
    used = [(after - first) / done for first, after in zip(before, weights.cpu(), strict=True)]
    copies.check(done, series)
    ends = _ends([*looks, (seconds, done)])
    sizes = {"before": first_sizes, "most": weights.most, "after": weights.sizes()}
    return {"rate": done / seconds, "cpu": used, "sizes": sizes, "ends": ends, "drained": done}


def _ends(looks: list[tuple[float, int]]) -> list[float]:
    """Return the rates over the first tenth and over the last."""
    seconds, done = looks[-1]
    early = next(look for look in looks if look[1] >= 0.1 * done)
    late = next(look for look in reversed(looks) if look[1] <= 0.9 * done)
    return [early[1] / early[0], (done - late[1]) / (seconds - late[0])]


def _middle(depth: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    def over(name: str) -> list[float]:
        return [median(each) for each in zip(*(one[name] for one in rounds), strict=True)]

    return {
        "queued": depth,
        "rounds": len(rounds),
        "drained": rounds[-1]["drained"],
        "rate": median(one["rate"] for one in rounds),
        "rates": [one["rate"] for one in rounds],
        "cpu": over("cpu"),
        "ends": over("ends"),
        "sizes": rounds[-1]["sizes"],
    }


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = []
    for row in data["rows"]:
        cpu = [f"{1000 * each:.3f}" for each in row["cpu"]]
        ends = [f"{each:,.0f}" for each in row["ends"]]
        sizes = row["sizes"]
        mib = [
            f"{sizes['before'][part] / 2**20:.0f} / {sizes['most'][part] / 2**20:.0f}"
            for part in (0, 1)
        ]
        counts = [f"{row[name]:,}" for name in ("queued", "drained")]
        rows.append(
            (*counts, f"{row['rate']:,.0f}", spread(row.get("rates", [])), *ends, *cpu, *mib)
        )
    headings = (
        "queued",
        "drained",
        "tasks/s",
        "slowest to fastest",
        "first tenth",
        "last tenth",
        "consumer ms",
        "pool ms",
        "Redis ms",
        "consumer MiB",
        "pool MiB",
    )
    notes = (
        '"noop", prefilled; ms are CPU time a task.',
        "MiB: a process's own memory before, and the most of it seen.",
    )
    return [ResultTable("One worker drains what is queued", headings, rows, notes)]


CASE = Case("scale", "drain rate, CPU and memory with 10^3 to 10^6 queued", _measure, _sheets)
