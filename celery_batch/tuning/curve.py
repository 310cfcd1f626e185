"""How long batches of each size take, as measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median_high
from typing import Any

from celery_batch.batching.batch import Batch
from celery_batch.batching.policy import BatchPolicy

__all__ = ["MEDIAN", "SLOW", "CostLine", "Curve", "Point", "cost_of_call"]

#: The quantile of a usual run.
MEDIAN = 0.5

#: The quantile of a slow run.
SLOW = 0.95

#: A duration that is no division by zero.
_SHORTEST = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of batches of one size."""

    size: int  # items in each
    seconds: tuple[float, ...]  # the time of each run, shortest first, at least one
    memory: int | None = None  # most bytes of the device's memory in use meanwhile; None if unknown

    def quantile(self, share: float) -> float:
        """Return a quantile of the seconds, interpolated."""
        return _quantile(self.seconds, share)

    @property
    def rate(self) -> float:
        """Items a second in a usual run."""
        return self.size / self.quantile(MEDIAN)


@dataclass(frozen=True, slots=True)
class CostLine:
    """How long batches take as a function of their cost: a + b * cost."""

    a: float  # seconds of each batch
    b: float  # seconds of each unit of cost
    ratios: tuple[float, ...]  # what each run took, as a multiple of that, lowest first
    highest: float  # the highest cost that was measured

    @classmethod
    def fit(cls, runs: Iterable[tuple[float, float]]) -> CostLine:
        """Return the line with the least relative error."""
        runs = [(cost, max(seconds, _SHORTEST)) for cost, seconds in runs]
        weights = [seconds**-2 for _, seconds in runs]
        mean_cost = fmean([cost for cost, _ in runs], weights)
        mean = fmean([seconds for _, seconds in runs], weights)
        spread = fmean([(cost - mean_cost) ** 2 for cost, _ in runs], weights)
        common = fmean([(cost - mean_cost) * (seconds - mean) for cost, seconds in runs], weights)
        b = max(common / spread, 0.0) if spread else 0.0
        b = min(b, mean / mean_cost) if mean_cost else b  # or an empty batch would take no time
        a = max(mean - b * mean_cost, _SHORTEST)
        ratios = sorted(seconds / (a + b * cost) for cost, seconds in runs)
        return cls(a, b, tuple(ratios), max(cost for cost, _ in runs))

    def seconds(self, cost: float, share: float = MEDIAN) -> float:
        """Return a quantile of the time of batches of a cost."""
        return (self.a + self.b * cost) * _quantile(self.ratios, share)


@dataclass(frozen=True, slots=True)
class Curve:
    """How long a model's batches take."""

    points: tuple[Point, ...]  # by size, smallest first, at least one
    cap: str = ""  # why no larger batch was measured
    overhead: float = 0.0  # seconds that sending a request and its result take
    line: CostLine | None = None  # the same by cost, where batches are limited by it

    @property
    def sizes(self) -> list[int]:
        """The sizes that were measured."""
        return [point.size for point in self.points]

    @property
    def scatter(self) -> float:
        """The ratio of a slow run's time to a usual one's, for the median size."""
        if self.line is not None:
            return _quantile(self.line.ratios, SLOW) / _quantile(self.line.ratios, MEDIAN)
        return median_high(each.quantile(SLOW) / each.quantile(MEDIAN) for each in self.points)

    def seconds(self, size: int, share: float = MEDIAN) -> float:
        """Return a quantile of the time of a batch of any size, interpolated or proportional."""
        at = bisect_left(self.points, size, key=lambda point: point.size)
        if at == len(self.points):
            last = self.points[-1]
            return last.quantile(share) * size / last.size
        above = self.points[at]
        if above.size == size or at == 0:
            return above.quantile(share)
        below = self.points[at - 1]
        part = (size - below.size) / (above.size - below.size)
        return _interpolate(below.quantile(share), above.quantile(share), part)

    def of_batch(self, batch: Batch[Any], policy: BatchPolicy, share: float) -> float:
        """Return the time of a batch that a policy has formed."""
        cost = cost_of_call(policy, [request.cost for request in batch.requests], batch.rows)
        if self.line is None or cost is None:
            return self.seconds(batch.rows, share)
        return self.line.seconds(cost, share)

    @property
    def call_cost(self) -> float:
        """What a call costs beside its rows, in the unit of their cost; infinity if unknown."""
        return self.line.a / self.line.b if self.line is not None and self.line.b else inf

    def full(self, policy: BatchPolicy, share: float = MEDIAN) -> float:
        """Return the time of the largest batch that a policy forms."""
        if self.line is None or policy.max_batch_cost is None:
            return self.seconds(policy.max_batch_size, share)
        return self.line.seconds(policy.max_batch_cost, share)

    def capacity(self, size: int) -> float:
        """Return the most items a second with batches of up to a size."""
        return max(point.rate for point in self.points if point.size <= max(size, self.sizes[0]))


def cost_of_call(policy: BatchPolicy, costs: Sequence[float], rows: int) -> float | None:
    """Return what a call costs with its padding; None where cost is not limited."""
    limits = policy.cost_limits
    if limits is None:
        return None
    return limits.of_call(max(costs), rows) if limits.is_padded else sum(costs)


def _quantile(ordered: tuple[float, ...], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return _interpolate(ordered[below], ordered[above], place - below)


def _interpolate(low: float, high: float, part: float) -> float:
    return low + (high - low) * part
