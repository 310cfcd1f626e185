"""
A latency target against the best fixed settings, while the model becomes half as fast.

The best fixed setting of a target and a speed is the size and wait at which a worker takes the
most requests a second with 99 of 100 in time.  That rate is its capacity.  Before and after the
change the load is the same share of the capacity at that speed.  So the fixed settings are chosen
for each half, and know the load and the speed beforehand; the worker with a target knows neither.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import inf, log
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.app import PACED_CALL, PACED_ROW, PACED_SIZES, TARGETS
from bench.models.reference import expected
from bench.open_loop import send
from bench.policies.virtual_worker import VirtualModel, VirtualWorker, poisson
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import broker, running
from celery_batch.batching.policy import BatchPolicy

__all__ = ["CASE"]

_SHARES = (0.5, 0.8, 0.95)

#: How many times as long calls take, before and after the change.
_SPEEDS = (1.0, 2.0)

_WAITS = (0.0, 0.01)

#: Seconds after the start and after the change that do not count.
_SETTLING, _LEFT_OUT = 2.0, 10.0

#: Virtual seconds in which a capacity is sought, and in each half.
_SOUGHT, _VIRTUAL_HALF = 20.0, 40.0

#: Different requests and durations in virtual time.
_ROUNDS = 5

#: Real seconds that count in each half.
_REAL_HALF = 15.0

#: Seconds for which a worker has to hold a rate, and the seed of the arrivals.
_PROOF, _PROOF_SEED = 15.0, 300

#: What part of the last rate is tried next where a worker does not hold it, and the least part of
#: the first that is.
_LOWER, _LEAST = 0.96, 0.3

#: Seconds, and requests a second, in which a worker learns about itself.
_LEARNING, _LEARNING_RATE = 6.0, 200.0

#: A slow batch is that many standard deviations slower than usual: the 95th percentile.
_SLOW_IS = 1.645

#: The part of the requests that has to be in time.
_WANTED = 0.99


@dataclass(frozen=True, slots=True)
class _Server:
    """What a worker is made of."""

    call: float = PACED_CALL  # seconds of a call
    row: float = PACED_ROW  # seconds of each row
    noise: float = 0.03  # see `VirtualModel`
    overhead: float = 0.002  # seconds around a call

    def worker(self, policy: BatchPolicy, seed: int, slower: Any = None) -> VirtualWorker:
        """Return one in virtual time."""
        model = VirtualModel(self.call, self.row, self.noise)
        if slower is not None:
            model = replace(model, slower=slower)
        half = self.overhead / 2
        return VirtualWorker(policy, model, gap=half, store=half, seed=seed)

    def at(self, times: float) -> _Server:
        """Return one whose calls take so many times as long."""
        return replace(self, call=self.call * times, row=self.row * times)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The best fixed setting for a target and a speed, and how many requests a second it takes."""

    size: int
    wait: float
    capacity: float

    @property
    def name(self) -> str:
        """The task that has this setting."""
        return f"bench.paced{self.size}" + ("w" if self.wait else "")


@cache
def _best_fixed(server: _Server, target: float) -> _Fixed:
    found = [
        _Fixed(size, wait, _capacity(server, BatchPolicy(size, wait), target))
        for size, wait in product(PACED_SIZES, _WAITS)
    ]
    likely = sorted(found, key=lambda each: each.capacity)[-2:]
    return max((_proven(server, each, target) for each in likely), key=lambda each: each.capacity)


def _capacity(server: _Server, policy: BatchPolicy, target: float) -> float:
    """Return about how many requests a second are answered in time."""
    low, high = 0.0, 1 / server.row
    while high - low > 0.03 * high:
        rate = (low + high) / 2
        is_enough = _in_time(server, policy, target, rate, 1) >= _WANTED
        low, high = (rate, high) if is_enough else (low, rate)
    return high


def _proven(server: _Server, fixed: _Fixed, target: float) -> _Fixed:
    """Lower the rate until it holds for other requests, too."""
    policy = BatchPolicy(fixed.size, fixed.wait)
    while _in_time(server, policy, target, fixed.capacity, _ROUNDS) < _WANTED:
        fixed = replace(fixed, capacity=0.98 * fixed.capacity)
    return fixed


def _in_time(
    server: _Server, policy: BatchPolicy, target: float, rate: float, rounds: int
) -> float:
    workers = [
        server.worker(policy, seed).run(poisson(rate, 0.0, _SOUGHT, seed)) for seed in range(rounds)
    ]
    return fmean(each.within(target, _SETTLING) for each in workers)


def _virtual(target: float, share: float) -> dict[str, Any]:
    """Measure one target at one load in virtual time."""
    best = [_best_fixed(_Server().at(times), target) for times in _SPEEDS]
    rates = [share * each.capacity for each in best]
    found = [_virtual_round(target, best, rates, seed) for seed in range(_ROUNDS)]
    in_time, fixed = (
        [fmean(each[kind][half] for each in found) for half in (0, 1)] for kind in (0, 1)
    )
    return _compared(target, share, rates, best, in_time, fixed)


def _virtual_round(
    target: float, best: list[_Fixed], rates: list[float], seed: int
) -> tuple[list[float], list[float]]:
    """Return the parts in time of both halves, with the target and with the fixed settings."""
    change = _VIRTUAL_HALF
    halves = [(_SETTLING, change), (change + _LEFT_OUT, 2 * change)]
    first = poisson(rates[0], 0.0, change, seed=100 + seed)
    second = poisson(rates[1], change, 2 * change, seed=200 + seed)
    policy = BatchPolicy(max(PACED_SIZES), max(_WAITS), target_latency=target)
    worker = _Server().worker(policy, seed, partial(_after, change)).run([*first, *second])
    fixed = [
        _Server().at(times).worker(BatchPolicy(each.size, each.wait), seed).run(arrivals)
        for each, times, arrivals in zip(best, _SPEEDS, (first, second), strict=True)
    ]
    return (
        [worker.within(target, *half) for half in halves],
        [each.within(target, *half) for each, half in zip(fixed, halves, strict=True)],
    )


def _after(change: float, now: float) -> float:
    return _SPEEDS[now >= change]


def _compared(
    target: float,
    share: float,
    rates: list[float],
    best: list[_Fixed],
    in_time: list[float],
    fixed: list[float],
) -> dict[str, Any]:
    """Return the figures of a target and a load; of both halves the worse one counts."""
    return {
        "target": target,
        "share": share,
        "rates": rates,
        "sizes": [each.size for each in best],
        "in_time": in_time,
        "fixed": fixed,
        # The load is the same, so that answers in time a second compare as their parts do.
        "throughput": min(
            ours / theirs if theirs else inf for ours, theirs in zip(in_time, fixed, strict=True)
        ),
    }


def _in_time_of(
    task: Any,
    target: float,
    rate: float,
    left_out: float,
    seed: int,
    seconds: float = _REAL_HALF,
) -> float:
    """Send requests to a worker; return the part in time of those after the first seconds."""
    arrivals = poisson(rate, 0.0, left_out + seconds, seed)
    numbers = range(len(arrivals))
    times, results = send(task, numbers, arrivals)
    if [result.get(timeout=60) for result in results] != expected(numbers):
        raise RuntimeError(f"{task.name}: a wrong answer")
    return fmean(took <= target for at, took in zip(arrivals, times, strict=True) if at >= left_out)


@dataclass(frozen=True, slots=True)
class _Workers:
    """A worker with targets and one with fixed settings, which share the machine."""

    app: Any
    slower: Path  # says how many times as long calls take

    def in_time(self, target: float, fixed: _Fixed, rate: float, **limits: Any) -> list[float]:
        """Load both at the same time; return the parts in time, that of the fixed one last."""
        names = (f"bench.target{target * 1000:.0f}", fixed.name)
        measure = partial(_in_time_of, target=target, rate=rate, **limits)
        with ThreadPoolExecutor() as threads:
            return [*threads.map(measure, (self.app.tasks[name] for name in names))]

    def best_fixed(self, server: _Server, target: float) -> list[_Fixed]:
        """Return the best setting of each speed, at a rate that the worker has held with it."""
        return [
            self._held(_best_fixed(server.at(times), target), target, times) for times in _SPEEDS
        ]

    def _held(self, fixed: _Fixed, target: float, times: float) -> _Fixed:
        self.slower.write_text(str(times))
        limits: dict[str, Any] = {"left_out": _SETTLING, "seed": _PROOF_SEED, "seconds": _PROOF}
        least = _LEAST * fixed.capacity
        while self.in_time(target, fixed, fixed.capacity, **limits)[-1] < _WANTED:
            fixed = replace(fixed, capacity=_LOWER * fixed.capacity)
            if fixed.capacity < least:
                raise RuntimeError(f"{fixed.name}: {least:.0f} requests/s are not held, either")
        return fixed


def _real(workers: _Workers, target: float, best: list[_Fixed], share: float) -> dict[str, Any]:
    """Measure one target at one load with workers, both kinds at the same time."""
    rates = [share * each.capacity for each in best]
    halves = []
    for half, times in enumerate(_SPEEDS):
        workers.slower.write_text(str(times))
        left_out = _LEFT_OUT if half else _SETTLING
        halves.append(
            workers.in_time(target, best[half], rates[half], left_out=left_out, seed=half)
        )
    in_time, fixed = ([*each] for each in zip(*halves, strict=True))
    return _compared(target, share, rates, best, in_time, fixed)


def _measure(effort: Effort) -> dict[str, Any]:
    pairs = [*product(TARGETS, _SHARES)]
    virtual = [_virtual(*pair) for pair in pairs]
    if effort.share < 1:
        pairs = [(TARGETS[1], share) for share in (_SHARES[0], _SHARES[-1])]
    with tempfile.TemporaryDirectory() as folder, broker():
        slower = Path(folder) / "slower"
        slower.write_text("1")
        os.environ["BENCH_SLOWER"] = str(slower)
        queues = [f"bench-target{target * 1000:.0f}" for target in TARGETS]
        try:
            with (
                running("--concurrency=1", "-Q", ",".join(queues), "-n", "target@%h") as stack,
                running("--concurrency=1", "-Q", "bench-paced", "-n", "fixed@%h"),
            ):
                server, workers = _measured(stack.app), _Workers(stack.app, slower)
                best = {
                    target: workers.best_fixed(server, target)
                    for target in dict.fromkeys(target for target, _ in pairs)
                }
                real = [_real(workers, target, best[target], share) for target, share in pairs]
        finally:
            del os.environ["BENCH_SLOWER"]
    return {"virtual": virtual, "real": real, "overhead": server.overhead}


def _measured(app: Any) -> _Server:
    """Warm both workers up, and return what one of them has learnt about itself."""
    names = [f"bench.target{target * 1000:.0f}" for target in TARGETS]
    for name in (*names, *(f"bench.paced{size}" for size in PACED_SIZES)):
        for result in app.tasks[name].delay_many(range(8)):
            result.get(timeout=60)
    arrivals = poisson(_LEARNING_RATE, 0.0, _LEARNING)
    learning = [app.tasks[name] for name in (names[-1], f"bench.paced{PACED_SIZES[-1]}")]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda task: send(task, range(len(arrivals)), arrivals), learning))
    replies = app.control.broadcast("batch_status", reply=True, timeout=5.0, limit=2)
    reports = {
        name: report
        for reply in replies
        for each in reply.values()
        for name, report in each.items()
    }
    found = reports[names[-1]]["latency"]
    noise = max(log(found["slowness"]) / _SLOW_IS, 0.01)
    return _Server(found["a"], found["b"], noise, found["overhead"])


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    headings = (
        "target, load",
        "requests/s",
        "best fixed size",
        "in time, fixed",
        "in time, target",
        "throughput, of fixed",
    )
    model = (
        f"A model of {PACED_CALL * 1000:g} ms a call and {PACED_ROW * 1000:g} ms a row, which then"
        " takes twice as long; figures before → after, without the 10 s that follow the change."
    )
    capacity = (
        "Capacity: the most requests a second of which the best fixed size and wait for that speed"
        " answer 99 % in time; the load is a share of it in each half."
    )
    measured = (
        "Capacities of the workers: computed from what one of them has measured of itself"
        f" ({data['overhead'] * 1000:.1f} ms around a call), and lowered until the worker with the"
        " fixed setting answers 99 % in time beside the other one."
    )
    throughput = "Throughput: answers in time, of those with the fixed settings; the worse half."
    notes = (model, capacity, measured, throughput)
    return [
        ResultTable(
            f"A latency target, {where}", headings, [_row(each) for each in data[kind]], notes
        )
        for kind, where in (("virtual", "in virtual time"), ("real", "workers on Redis"))
    ]


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    def both(values: list[float], form: str) -> str:
        return " → ".join(format(value, form) for value in values)

    return (
        f"{found['target'] * 1000:.0f} ms, {found['share']:g}",
        both(found["rates"], ".0f"),
        both(found["sizes"], "d"),
        both(found["fixed"], ".3f"),
        both(found["in_time"], ".3f"),
        f"{found['throughput']:.2f}",
    )


def _goals(data: dict[str, Any]) -> list[Goal]:
    goals = []
    for kind, where in (("virtual", "virtual"), ("real", "workers")):
        worst = min(value for each in data[kind] for value in each["in_time"])
        least = min(each["throughput"] for each in data[kind])
        goals += [
            Goal(f"share in time, {where}", worst, 0.99),
            Goal(f"throughput of the best fixed setting's, {where}", least, 0.95),
        ]
    return goals


CASE = Case(
    "target", "a latency target, and the best fixed settings", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
