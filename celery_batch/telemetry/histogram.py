"""A histogram with fixed buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Histogram"]

#: The name of the bucket that has no bound.
_BEYOND = "inf"


class Histogram:
    """Counts numbers by size: in a bucket up to each of the ascending bounds, and one beyond."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        #: The count of each bucket; the last one is of numbers beyond all bounds.
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many numbers were counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean of all numbers; None if there were none."""
        count = self.count
        return self.sum / count if count else None

    def add(self, number: float) -> None:
        """Count one number."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.sum += number

    def add_all(self, numbers: Iterable[float]) -> None:
        """Count many numbers, as `add` does."""
        bounds, counts, total = self.bounds, self.counts, 0.0
        for number in numbers:
            counts[bisect_left(bounds, number)] += 1
            total += number
        self.sum += total

    def quantile(self, share: float) -> float | None:
        """Estimate, as Prometheus does, what a share of all numbers do not exceed; None if none."""
        counts = list(self.counts)
        wanted = share * sum(counts)
        lower = 0.0
        for bound, count in zip(self.bounds, counts, strict=False):
            if count and wanted <= count:
                return lower + (bound - lower) * wanted / count
            wanted -= count
            lower = bound
        return lower if any(counts) else None

    def buckets(self) -> dict[str, int]:
        """Return the counts by bound, from the bucket before the first filled one to the last."""
        filled = [place for place, count in enumerate(self.counts) if count]
        if not filled:
            return {}
        names = [*(f"{bound:g}" for bound in self.bounds), _BEYOND]
        used = slice(max(filled[0] - 1, 0), filled[-1] + 1)
        return dict(zip(names[used], self.counts[used], strict=True))

    @classmethod
    def of(cls, buckets: Mapping[str, int]) -> Histogram:
        """Return a histogram of what `buckets` returned, or of sums or differences of it."""
        found = cls(sorted(float(name) for name in buckets if name != _BEYOND))
        named = {float(name): count for name, count in buckets.items()}
        found.counts = [named.get(bound, 0) for bound in (*found.bounds, float(_BEYOND))]
        return found
