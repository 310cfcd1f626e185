"""How long batches of each size take, as measured."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from statistics import median_high

__all__ = ["MEDIAN", "SLOW", "Curve", "Point"]

#: The quantile of a usual run.
MEDIAN = 0.5

#: The quantile of a slow run.
SLOW = 0.95


@dataclass(frozen=True, slots=True)
class Point:
    """
    The runs of batches of one size.

    Args:
        size: Items in each.
        seconds: The time of each run, shortest first, at least one.
        memory: Most bytes of the device's memory in use meanwhile; None if unknown.
    """

    size: int
    seconds: tuple[float, ...]
    memory: int | None = None

    def quantile(self, share: float) -> float:
        """
        Return a quantile of the seconds, interpolated.

        Args:
            share: From 0 for the shortest to 1 for the longest.
        """
        place = share * (len(self.seconds) - 1)
        below = int(place)
        above = min(below + 1, len(self.seconds) - 1)
        return _interpolate(self.seconds[below], self.seconds[above], place - below)

    @property
    def rate(self) -> float:
        """Items a second in a usual run."""
        return self.size / self.quantile(MEDIAN)


@dataclass(frozen=True, slots=True)
class Curve:
    """
    How long a model's batches take.

    Args:
        points: By size, smallest first, at least one.
        cap: Why no larger batch was measured.
        overhead: Seconds that sending a request and its result take.
    """

    points: tuple[Point, ...]
    cap: str = ""
    overhead: float = 0.0

    @property
    def sizes(self) -> list[int]:
        """The sizes that were measured."""
        return [point.size for point in self.points]

    @property
    def scatter(self) -> float:
        """The ratio of a slow run's time to a usual one's, for the median size."""
        return median_high(each.quantile(SLOW) / each.quantile(MEDIAN) for each in self.points)

    def seconds(self, size: int, share: float = MEDIAN) -> float:
        """
        Return the time of a batch of any size.

        Args:
            size: Items in it, at least 1; interpolated between two measured sizes, and
                beyond the ends proportional to the nearest.
            share: The quantile, as for `Point.quantile`.
        """
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

    def capacity(self, size: int) -> float:
        """Return the most items a second with batches of up to a size."""
        return max(point.rate for point in self.points if point.size <= max(size, self.sizes[0]))


def _interpolate(low: float, high: float, part: float) -> float:
    return low + (high - low) * part
