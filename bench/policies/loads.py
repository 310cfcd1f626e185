"""
Requests of unlike lengths for a server in virtual time, and how long it computes.

The lengths are those of `bench.models.encoder`: log-normal, 4 to 256 tokens, mean 43.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from bench.models.encoder import LONGEST, token_counts
from celery_batch.batching.batch import Batch, Request

__all__ = ["CALL_COST", "LOADS", "seconds"]

#: Seconds of a call, and of each token in it, padding included.
_CALL, _TOKEN = 2e-3, 6e-6

#: The same in tokens, as a worker learns it.
CALL_COST = _CALL / _TOKEN

#: Requests of a burst, on average, and how much faster they come than on average.
_BURST, _FAST = 200, 4

#: Texts that come at one moment where a load is hostile, and how many of them are the longest.
_GROUP, _LONG = 64, 2

#: One hostile group in so many has a text unlike all others.
_OUTLIERS = 40


def seconds(batch: Batch[int]) -> float:
    """Return how long the server computes a batch, each text padded to the longest."""
    return _CALL + _TOKEN * max(batch.items) * len(batch)


def _poisson(rate: float, count: int, seed: int) -> Iterator[Request[int]]:
    """Yield requests that come independently, as those of many users do."""
    chance, now = random.Random(seed), 0.0
    for length in token_counts(count, seed):
        now += chance.expovariate(rate)
        yield Request(length, now, cost=float(length))


def _bursty(rate: float, count: int, seed: int) -> Iterator[Request[int]]:
    """Yield requests that come four times as fast for a while, and then not at all."""
    chance, now = random.Random(seed), 0.0
    burst, pause = _BURST / (_FAST * rate), _BURST * (1 - 1 / _FAST) / rate
    ends = chance.expovariate(1 / burst)
    for length in token_counts(count, seed):
        now += chance.expovariate(_FAST * rate)
        while now > ends:
            paused = chance.expovariate(1 / pause)
            now, ends = now + paused, ends + paused + chance.expovariate(1 / burst)
        yield Request(length, now, cost=float(length))


def _hostile(rate: float, count: int, seed: int) -> Iterator[Request[int]]:
    """Yield groups of short texts behind the longest, and sometimes one of a length of its own."""
    chance, now, made = random.Random(seed), 0.0, 0
    while made < count:
        now += chance.expovariate(rate / _GROUP)
        outlier = chance.random() < 1 / _OUTLIERS
        lengths = [LONGEST] * _LONG + [chance.randint(4, 16) for _ in range(_GROUP - _LONG)]
        lengths[-1] = LONGEST // 2 if outlier else lengths[-1]
        for length in lengths[: count - made]:
            yield Request(length, now, cost=float(length))
        made += len(lengths)


#: Each load makes so many requests at a rate, by a seed.
LOADS: dict[str, Callable[[float, int, int], Iterator[Request[int]]]] = {
    "Poisson": _poisson,
    "bursty": _bursty,
    "adversarial": _hostile,
}
