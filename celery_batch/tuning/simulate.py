"""
What would become of requests, told by the policy itself.

Rule 1: the batcher that decides here is the one that decides in a worker; only
        time is made up, and what batches take is drawn from what was measured.
Rule 2: the same load for everybody, so that two settings differ by what they are.
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

#: Requests in a simulation: the 99th percentile then rests on 40 of them.
_REQUESTS = 4000

#: Seconds that time moves on at least, or sums of small and large ones would stand still.
_TICK = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """
    Requests that come whenever they like.

    Args:
        arrivals: When, in seconds, in order, at least one.
        luck: From 0 to 1, how slow each batch is among its like, in their order; as many
            as there are arrivals.
    """

    arrivals: tuple[float, ...]
    luck: tuple[float, ...]

    @classmethod
    def at(cls, rate: float, requests: int = _REQUESTS) -> Load:
        """
        Return requests that come one by one and independently, as those of many users do.

        Args:
            rate: How many come in a second, on average.
            requests: How many.
        """
        gaps, luck = _drawn(requests)
        return cls(tuple(accumulate(gap / rate for gap in gaps)), luck)


@dataclass(frozen=True, slots=True)
class Forecast:
    """
    What a load is expected to see.

    Args:
        p50: Seconds from arrival to answer that half of the requests did not exceed.
        p99: The same, for 99 of 100.
        rate: Requests answered in a second.
        batch_size: Of a batch, on average.
        busy: Share of the time in which the model ran.
    """

    p50: float
    p99: float
    rate: float
    batch_size: float
    busy: float


def simulate(policy: BatchPolicy, curve: Curve, load: Load) -> Forecast:
    """
    Let a load meet a worker process with one model, which batches by a policy.

    Args:
        policy: The worker's.
        curve: What its batches take.
        load: Who comes when.
    """
    latencies, busy, batches, now = [], 0.0, 0, 0.0
    for batch, began, seconds in _batches(policy, curve, load):
        now = began + seconds
        busy += seconds
        batches += 1
        latencies += [now - request.arrived + curve.way for request in batch.requests]
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
    """Yield each batch, when it began, and the seconds that it takes."""
    batcher: Batcher[None] = Batcher(policy)
    luck, coming, now = iter(load.luck), deque(load.arrivals), load.arrivals[0]
    _let_in(batcher, coming, now)
    while batcher or coming:
        decision = batcher.next(now)
        if isinstance(decision, Batch):
            seconds = curve.seconds(len(decision), next(luck))
            yield decision, now, seconds
            now += seconds
            _let_in(batcher, coming, now)
            if len(decision) > 1:
                batcher.batch_ended(now, decision.rows, decision.urgency)
            continue
        wait = decision.seconds if isinstance(decision, Wait) else None
        until = inf if wait is None else now + max(wait, _TICK)
        now = min(until, coming[0]) if coming else until
        _let_in(batcher, coming, now)


def _let_in(batcher: Batcher[None], coming: deque[float], now: float) -> None:
    while coming and coming[0] <= now:
        batcher.add(Request(None, coming.popleft()))


@cache
def _drawn(requests: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Draw the gaps of a load of one request a second, and the luck of its batches."""
    chance = random.Random(20)  # noqa: S311 (the same load for everybody)
    gaps = tuple(chance.expovariate(1.0) for _ in range(requests))
    return gaps, tuple(chance.random() for _ in range(requests))
