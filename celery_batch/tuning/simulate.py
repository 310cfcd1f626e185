"""
Simulates a worker process under load.

Rule 1: the batcher here is the worker's own; only the clock is simulated, and the times of
        batches are drawn from the measured ones.
Rule 2: the load is the same each time, so that differences are due to the settings.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf

from celery_batch.batching.batch import Batch
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
from celery_batch.tuning.curve import Curve

__all__ = ["Forecast", "Load", "simulate"]

#: Requests in a simulation; 40 of them are above the 99th percentile.
_REQUESTS = 4000

#: The least step of time, in seconds; a smaller one could be lost in float arithmetic.
_TICK = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """
    Requests to simulate.

    Args:
        arrivals: Their times in seconds, in order, at least one.
        quantiles: From 0 to 1, how slow each batch is among those of its size, in order; as
            many as there are arrivals.
    """

    arrivals: tuple[float, ...]
    quantiles: tuple[float, ...]

    @classmethod
    def at(cls, rate: float, requests: int = _REQUESTS) -> Load:
        """
        Return requests that arrive independently, as those of many users do.

        Args:
            rate: Requests a second, on average.
            requests: How many.
        """
        gaps, quantiles = _draw(requests)
        return cls(tuple(accumulate(gap / rate for gap in gaps)), quantiles)


@dataclass(frozen=True, slots=True)
class Forecast:
    """
    The result of a simulation.

    Args:
        p50: The median of the seconds from arrival to result.
        p99: The 99th percentile.
        rate: Requests a second.
        batch_size: On average.
        busy: Share of the time in which the model ran.
    """

    p50: float
    p99: float
    rate: float
    batch_size: float
    busy: float


def simulate(policy: BatchPolicy, curve: Curve, load: Load) -> Forecast:
    """
    Simulate a worker process with one model.

    Args:
        policy: The worker's.
        curve: How long its batches take.
        load: The requests.
    """
    latencies, busy, batches, now = [], 0.0, 0, 0.0
    for batch, began, seconds in _batches(policy, curve, load):
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


def _batches(
    policy: BatchPolicy, curve: Curve, load: Load
) -> Iterator[tuple[Batch[None], float, float]]:
    """Yield each batch, its start, and the seconds that it takes."""
    batcher: Batcher[None] = Batcher(policy)
    quantiles, arrivals, now = iter(load.quantiles), deque(load.arrivals), load.arrivals[0]
    _add_arrived(batcher, arrivals, now)
    while batcher or arrivals:
        decision = batcher.next(now)
        if isinstance(decision, Batch):
            seconds = curve.seconds(len(decision), next(quantiles))
            yield decision, now, seconds
            now += seconds
            _add_arrived(batcher, arrivals, now)
            if len(decision) > 1:
                batcher.batch_ended(now, decision.rows, decision.urgency)
            continue
        wait = decision.seconds if isinstance(decision, Wait) else None
        until = inf if wait is None else now + max(wait, _TICK)
        now = min(until, arrivals[0]) if arrivals else until
        _add_arrived(batcher, arrivals, now)


def _add_arrived(batcher: Batcher[None], arrivals: deque[float], now: float) -> None:
    while arrivals and arrivals[0] <= now:
        batcher.add(Request(None, arrivals.popleft()))


@cache
def _draw(requests: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the gaps of a load of one request a second, and the quantiles of its batches."""
    chance = random.Random(20)  # noqa: S311 (the same load each time)
    gaps = tuple(chance.expovariate(1.0) for _ in range(requests))
    return gaps, tuple(chance.random() for _ in range(requests))
