"""
How long batches take, learnt from those that ran.

Rule 1: a batch takes a + b * work seconds, and its results are stored some seconds later. The
        last batches count most.
Rule 2: a batch that takes far longer or shorter than expected is left out, unless three in a
        row do so in the same direction: then the speed of the model has changed. Of a size that
        was not seen before, all is expected that some a and b explain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf, sqrt
from statistics import median

__all__ = ["LatencyModel"]

#: The weight of earlier batches, at each new one.
_DECAY = 0.98

#: Batches after which the model is known.
_MIN_BATCHES = 8

#: How many batches are looked at for what is usual.
_RECENT = 64

#: Seconds for which an overhead or an outlier counts: of a task with few batches, a stall would
#: for minutes.
_COUNTS = 10.0

#: A slow batch is slower than this part of recent ones.
_SLOW_QUANTILE = 0.95

#: How many times its expected duration a slow batch takes, while too few are known.
_DEFAULT_SLOWNESS = 1.25

#: An outlier takes so many times what was expected, or as little.
_OUTLIER = 1.5

#: So many outliers in a row mean that the speed has changed.
_IN_A_ROW = 3

#: The part by which sizes must differ to say more than is known about the slope.
_PRIOR = 0.05

#: So many times as far from the usual size as others are, a size is one that was not seen before.
_UNLIKE = 2.0

#: A duration that is no division by zero.
_SHORTEST = 1e-9


class LatencyModel:
    """Seconds of one call of the model, as a function of its work: rows, or cost with padding."""

    def __init__(self) -> None:
        #: Seconds of a call, and of each unit of work in it.
        self.a = self.b = 0.0
        #: How many batches were observed.
        self.batches = 0
        #: Seconds between a process and its model, before and after a batch.
        self.overhead = 0.0
        self._slowness = _DEFAULT_SLOWNESS
        #: As of when it has to be computed again; None if it need not be.
        self._judged_as_of: float | None = None
        self._weight = self._work = self._seconds = self._squares = self._products = 0.0
        #: When each was seen, and how many times its expected duration a call took.
        self._ratios: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        #: When each was seen, and when the first of those that count counts no more.
        self._overheads: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._forgets_at = inf
        self._outliers: list[float] = []

    @property
    def is_known(self) -> bool:
        """Whether enough batches were observed."""
        return self.batches >= _MIN_BATCHES

    @property
    def call_cost(self) -> float:
        """What a call costs beside its rows, in the unit of work; infinity while not known."""
        return self.a / self.b if self.is_known and self.b else inf

    @property
    def usual_work(self) -> float:
        """The work of a batch on average, of late."""
        return self._work / self._weight if self._weight else 0.0

    @property
    def slowness(self) -> float:
        """How many times its expected duration a slow batch takes."""
        now, self._judged_as_of = self._judged_as_of, None
        if now is not None and len(self._ratios) >= _MIN_BATCHES:
            counted = [each for at, each in self._ratios if each < _OUTLIER or now < at + _COUNTS]
            self._slowness = max(_quantile(counted), 1.0)
        return self._slowness

    def expected(self, work: float) -> float:
        """Return how long a call takes."""
        return self.a + self.b * work

    def slow(self, work: float) -> float:
        """Return the seconds until the results of a slow batch are stored."""
        return self.slowness * self.expected(work) + self.overhead

    def largest(self, seconds: float) -> float:
        """Return the work of the largest batch that is stored so soon, even if it is slow."""
        left = (seconds - self.overhead) / self.slowness - self.a
        if left <= 0:
            return 0.0
        return left / self.b if self.b else inf

    def observe(self, work: float, seconds: float, now: float = 0.0) -> None:
        """Learn from a call that went as calls go: its work, above 0, and how long it took."""
        if self.is_known and not self._is_usual(seconds / self._plausible(work, seconds), now):
            return
        self.batches += 1
        self._weight = _DECAY * self._weight + 1
        self._work = _DECAY * self._work + work
        self._seconds = _DECAY * self._seconds + seconds
        self._squares = _DECAY * self._squares + work * work
        self._products = _DECAY * self._products + work * seconds
        self._fit()

    def observe_overhead(self, seconds: float, now: float) -> None:
        """Learn how long a batch was with its process, but not in the model."""
        self._overheads.append((now, seconds))
        self._forgets_at = now
        self.forget(now)

    def forget(self, now: float) -> None:
        """Judge by batches of late; if there were none, by what is usual."""
        if now < self._forgets_at:
            return
        recent = [each for each in self._overheads if now < each[0] + _COUNTS]
        self._forgets_at = recent[0][0] + _COUNTS if recent else inf
        seconds = [each for _, each in recent or self._overheads]
        self.overhead = _quantile(seconds) if recent else median(seconds)
        self._judged_as_of = now

    def _plausible(self, work: float, seconds: float) -> float:
        """Return the expected duration that comes nearest to the one that was observed."""
        # Of work unlike all that was seen, only the bounds are known: it takes as long as the usual
        # work, or in proportion to it.
        usual, low = self.usual_work, self.expected(work)
        high = low
        if abs(work - usual) > _UNLIKE * self._spread:
            low, high = sorted((self.expected(usual), self.expected(usual) * work / usual))
        return max(min(max(seconds, low), high), _SHORTEST)

    @property
    def _spread(self) -> float:
        """By how much sizes differ."""
        variance = self._squares / self._weight - self.usual_work**2
        return sqrt(max(variance, 0.0)) + _PRIOR * self.usual_work

    def _is_usual(self, ratio: float, now: float) -> bool:
        """Return whether a duration is to be learnt from, given its ratio to the expected one."""
        self._ratios.append((now, ratio))
        self._judged_as_of = now
        if 1 / _OUTLIER < ratio < _OUTLIER:
            self._outliers.clear()
            return True
        if self._outliers and (self._outliers[-1] > 1) != (ratio > 1):
            self._outliers.clear()
        self._outliers.append(ratio)
        if len(self._outliers) < _IN_A_ROW:
            return False
        self._change_speed(median(self._outliers))
        return True

    def _change_speed(self, ratio: float) -> None:
        """Scale all that is known: calls take so many times as long."""
        self._seconds *= ratio
        self._products *= ratio
        self.b *= ratio
        self._ratios.clear()
        self._outliers.clear()

    def _fit(self) -> None:
        work, seconds = self._work / self._weight, self._seconds / self._weight
        variance = max(self._squares / self._weight - work * work, 0.0)
        covariance = self._products / self._weight - work * seconds
        # Where sizes hardly differ, the slope is what it was.
        prior = (_PRIOR * work) ** 2
        most = seconds / work
        slope = (covariance + prior * (self.b or most / 2)) / (variance + prior)
        self.b = min(max(slope, 0.0), most)
        self.a = max(seconds - self.b * work, 0.0)


def _quantile(values: Collection[float]) -> float:
    return sorted(values)[int(_SLOW_QUANTILE * (len(values) - 1))]
