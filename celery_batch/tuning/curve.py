"""What batches of each size have taken."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["MIDDLE", "SLOW", "Curve", "Point"]

#: The share of runs that were not slower than the usual one.
MIDDLE = 0.5

#: The share of runs that were not slower than the slow ones.
SLOW = 0.95


@dataclass(frozen=True, slots=True)
class Point:
    """
    Batches of one size.

    Args:
        size: Items in each.
        seconds: What each took, shortest first, at least one.
        memory: Most bytes of the device's memory in use meanwhile; None if it cannot tell.
    """

    size: int
    seconds: tuple[float, ...]
    memory: int | None = None

    def quantile(self, share: float) -> float:
        """
        Return the seconds that a share of the batches did not exceed.

        Args:
            share: From 0 for the shortest to 1 for the longest; between two it is in between.
        """
        place = share * (len(self.seconds) - 1)
        below = int(place)
        above = min(below + 1, len(self.seconds) - 1)
        return _between(self.seconds[below], self.seconds[above], place - below)

    @property
    def rate(self) -> float:
        """Items a second in usual batches."""
        return self.size / self.quantile(MIDDLE)


@dataclass(frozen=True, slots=True)
class Curve:
    """
    What a model was seen to do.

    Args:
        points: By size, smallest first, at least one.
        cap: Why no larger batch was measured.
        way: Seconds that a message and its answer are on their way.
    """

    points: tuple[Point, ...]
    cap: str = ""
    way: float = 0.0

    @property
    def sizes(self) -> list[int]:
        """What was measured."""
        return [point.size for point in self.points]

    @property
    def scatter(self) -> float:
        """How many times as long as a usual batch a slow one takes, for the usual size."""
        times = sorted(point.quantile(SLOW) / point.quantile(MIDDLE) for point in self.points)
        return times[len(times) // 2]

    def seconds(self, size: int, share: float = MIDDLE) -> float:
        """
        Return what a batch takes, also one of a size that was not measured.

        Args:
            size: Items in it, at least 1; between two sizes it is in between, and
                beyond the ends it costs as the nearest does.
            share: How unlucky it is, as for `Point.quantile`.
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
        return _between(below.quantile(share), above.quantile(share), part)

    def capacity(self, size: int) -> float:
        """Return the most items a second with batches of up to a size."""
        return max(point.rate for point in self.points if point.size <= max(size, self.sizes[0]))


def _between(low: float, high: float, part: float) -> float:
    return low + (high - low) * part
