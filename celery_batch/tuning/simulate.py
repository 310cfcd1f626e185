"""
Simulates a worker process under load.

Rule 1: the batcher here is the worker's own; only the clock is simulated, and the times of
        batches are drawn from the measured ones.
Rule 2: the load is the same each time, so that differences are due to the settings.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, cycle, islice, repeat
from math import inf
from typing import TypeVar

from celery_batch.batching.batch import Batch, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.cost import CallCost
from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import Curve

__all__ = ["Forecast", "Load", "run", "simulate"]

T = TypeVar("T")

#: Requests in a simulation; 40 of them are above the 99th percentile.
_REQUESTS = 4000

#: The least step of time, in seconds; a smaller one could be lost in float arithmetic.
_TICK = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """Requests to simulate."""

    #: Their times in seconds, in order, at least one.
    arrivals: tuple[float, ...]
    #: From 0 to 1, how slow each batch is among those of its size, in order; as many as there are
    #: arrivals.
    quantiles: tuple[float, ...]
    #: What each costs; none where cost does not count.
    costs: tuple[float, ...] = ()
    #: How many rows each has; none if each has one.
    rows: tuple[int, ...] = ()

    @classmethod
    def at(cls, rate: float, requests: int = _REQUESTS, costs: Sequence[float] = ()) -> Load:
        """Return requests that arrive independently, as those of many users do."""
        gaps, quantiles = _draw(requests)
        arrivals = tuple(accumulate(gap / rate for gap in gaps))
        return cls(arrivals, quantiles, tuple(islice(cycle(costs), requests)))

    @classmethod
    def recorded(
        cls, arrivals: Sequence[float], costs: Sequence[float], rows: Sequence[int]
    ) -> Load:
        """Return requests as they came, at least two."""
        _, quantiles = _draw(len(arrivals))
        return cls(tuple(arrivals), quantiles, tuple(costs), tuple(rows))

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.arrivals) / max(self.arrivals[-1] - self.arrivals[0], _TICK)

    def faster(self, rate: float) -> Load:
        """Return the same requests at another rate."""
        first, factor = self.arrivals[0], self.rate / rate
        arrivals = tuple((arrived - first) * factor for arrived in self.arrivals)
        return replace(self, arrivals=arrivals)

    def requests(self) -> Iterator[Request[None]]:
        """Yield them by arrival."""
        costs, rows = self.costs or repeat(0.0), self.rows or repeat(1)
        for arrived, cost, count in zip(self.arrivals, costs, rows, strict=False):
            yield Request(None, arrived, cost=cost, rows=count)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The result of a simulation."""

    p50: float  # the median of the seconds from arrival to result
    p99: float  # the 99th percentile
    rate: float  # requests a second
    batch_size: float  # on average
    busy: float  # share of the time in which the model ran


def simulate(policy: BatchPolicy, curve: Curve, load: Load) -> Forecast:
    """Simulate a worker process with one model."""
    quantiles = iter(load.quantiles)
    runs = run(
        Batcher(policy, CallCost(curve.call_cost)),
        load.requests(),
        lambda batch: curve.of_batch(batch, policy, next(quantiles)),
    )
    latencies, busy, batches, now = [], 0.0, 0, 0.0
    for batch, began, seconds in runs:
        now = began + seconds
        busy += seconds
        batches += 1
        latencies += [now - request.arrived + curve.overhead for request in batch.requests]
    latencies.sort()
    span = now - load.arrivals[0]
    return Forecast(
        p50=latencies[len(latencies) // 2],
        p99=latencies[min(int(len(latencies) * 0.99), len(latencies) - 1)],
        rate=len(latencies) / span,
        batch_size=len(latencies) / batches,
        busy=busy / span,
    )


def run(
    batcher: Batcher[T], requests: Iterable[Request[T]], seconds: Callable[[Batch[T]], float]
) -> Iterator[tuple[Batch[T], float, float]]:
    """Let one process run all requests; yield each batch, its start and its seconds."""
    waiting = deque(requests)
    now = waiting[0].arrived
    _add_arrived(batcher, waiting, now)
    while batcher or waiting:
        decision = batcher.next(now)
        if isinstance(decision, Batch):
            duration = seconds(decision)
            yield decision, now, duration
            now += duration
            _add_arrived(batcher, waiting, now)
            if len(decision) > 1:
                batcher.batch_ended(now, decision.rows, decision.urgency)
            continue
        wait = decision.seconds if isinstance(decision, Wait) else None
        until = inf if wait is None else now + max(wait, _TICK)
        now = min(until, waiting[0].arrived) if waiting else until
        _add_arrived(batcher, waiting, now)


def _add_arrived(batcher: Batcher[T], waiting: deque[Request[T]], now: float) -> None:
    while waiting and waiting[0].arrived <= now:
        batcher.add(waiting.popleft())


@cache
def _draw(requests: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the gaps of a load of one request a second, and the quantiles of its batches."""
    chance = random.Random(20)  # noqa: S311 (the same load each time)
    gaps = tuple(chance.expovariate(1.0) for _ in range(requests))
    return gaps, tuple(chance.random() for _ in range(requests))
