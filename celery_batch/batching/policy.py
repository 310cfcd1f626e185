"""When a batch leaves: the numbers that a user may set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from celery_batch.batching.cost import CostLimits
from celery_batch.batching.shapes import are_ascending
from celery_batch.errors import ConfigurationError

__all__ = ["DEFAULT_LINGER", "BatchPolicy", "is_above_zero", "is_whole", "require"]

#: Seconds.  Longer than the gap between two messages of a burst, short beside a model call.
DEFAULT_LINGER = 0.002

#: Rows of a batch that is limited by cost, where ``max_batch_size`` is no lower than `_MANY_ROWS`.
_USUAL_ROWS, _MANY_ROWS = 64, 200

#: Seconds; Redis counts milliseconds.
_SHORTEST_TTL = 0.001


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """
    How large a batch may grow and how long it may wait for further requests.

    Args:
        max_batch_size: Most rows in one model call, at least 1; a request has one row,
            a chunk many.
        max_wait: Most seconds a request waits for others while a slot is free, counted
            from its arrival; or from the end of a batch of several, if it arrived while
            that ran.
        linger: Seconds without a new request after which a free slot stops
            waiting.  Unless given, 2 ms or ``max_wait`` where that is shorter,
            and nothing after a batch of one.
        low_priority_share: The guaranteed share of requests that more urgent ones overtake,
            as a part of each batch, from 0 for none to 0.5.
        max_batch_cost: The highest cost of one model call; None to count rows alone.
        padded: Whether the model pads all rows to the longest, so that each costs as much.
        sort_window: From how many batches' worth of waiting requests a padded batch of similar
            lengths is chosen; 0 for first come, first served.  It is also how many batches
            later than that a request may leave.
        device_share: The weight of the task among those that share a worker's processes: while
            several have work, their seconds in the model are in proportion to it.
        batch_sizes: The numbers of rows that calls of the model have, ascending; none for any.
        batch_lengths: The lengths that rows are padded to, ascending; none for any.
        target_latency: Seconds from the sending of a request to its stored result that batches
            are to keep; None for no target.
        shed: Whether requests that will probably miss the target are refused.
        dedupe: Whether equal requests share a row.
        cache_ttl: Seconds for which answers are kept for equal rows; None to keep none.

    Raises:
        ConfigurationError: A value is not a number, or out of range.
    """

    max_batch_size: int = 32
    max_wait: float = 0.01
    linger: float | None = None
    low_priority_share: float = 0.1
    max_batch_cost: float | None = None
    padded: bool = False
    sort_window: int = 8
    device_share: float = 1.0
    batch_sizes: tuple[int, ...] = ()
    batch_lengths: tuple[int, ...] = ()
    target_latency: float | None = None
    shed: bool = False
    dedupe: bool = False
    cache_ttl: float | None = None

    def __post_init__(self) -> None:
        size, wait, linger = self.max_batch_size, self.max_wait, self.linger
        share, weight = self.low_priority_share, self.device_share
        seconds = "seconds as a number from 0 up"
        require(is_whole(size, 1), "max_batch_size", "a whole number of at least 1", size)
        require(_is_finite(wait) and wait >= 0, "max_wait", seconds, wait)
        is_linger = linger is None or (_is_finite(linger) and linger >= 0)
        require(is_linger, "linger", seconds, linger)
        is_share = _is_finite(share) and 0 <= share <= 0.5  # noqa: PLR2004
        require(is_share, "low_priority_share", "a number from 0 to 0.5", share)
        require(is_above_zero(weight), "device_share", "a number above 0", weight)
        for name in ("padded", "shed", "dedupe"):
            require(isinstance(switch := getattr(self, name), bool), name, "True or False", switch)
        self._check_cost()
        self._check_shapes()
        self._check_seconds()

    def _check_seconds(self) -> None:
        target, ttl = self.target_latency, self.cache_ttl
        is_target = target is None or is_above_zero(target)
        require(is_target, "target_latency", "seconds as a number above 0", target)
        if self.shed and target is None:
            raise ConfigurationError("shed: has no effect without target_latency")
        is_ttl = ttl is None or (_is_finite(ttl) and ttl >= _SHORTEST_TTL)
        require(is_ttl, "cache_ttl", "seconds above 0, or None for no cache", ttl)

    def _check_cost(self) -> None:
        cost, window = self.max_batch_cost, self.sort_window
        require(cost is None or is_above_zero(cost), "max_batch_cost", "a number above 0", cost)
        if self.padded and cost is None:
            raise ConfigurationError("padded: has no effect without max_batch_cost")
        require(is_whole(window, 0), "sort_window", "a whole number of batches from 0 up", window)

    def _check_shapes(self) -> None:
        size, sizes = self.max_batch_size, self.batch_sizes
        for name in ("batch_sizes", "batch_lengths"):
            expected = "a list of whole numbers from 1 up, in ascending order, such as (8, 32)"
            require(are_ascending(steps := getattr(self, name)), name, expected, steps)
        require(not sizes or size in sizes, "max_batch_size", f"one of batch_sizes {sizes}", size)
        if self.batch_lengths and not sizes:
            raise ConfigurationError(
                "batch_lengths: needs batch_sizes, without which the shapes of calls are not fixed"
            )

    @property
    def cost_limits(self) -> CostLimits | None:
        """The largest batch where cost is counted; None where rows are."""
        if self.max_batch_cost is None:
            return None
        lengths = self.batch_lengths if self.padded else ()
        return CostLimits(
            self.max_batch_size, self.max_batch_cost, self.padded, self.batch_sizes, lengths
        )

    def shapes(self, largest: float | None) -> list[tuple[int, int | None]]:
        """Return rows and length, if fixed, of each call that items up to this cost can have."""
        sizes = [size for size in reversed(self.batch_sizes) if size <= self.max_batch_size]
        if not self.batch_lengths:
            return [(size, None) for size in sizes]
        most = self.max_batch_cost if self.padded and self.max_batch_cost else math.inf
        costliest = largest if self.padded and largest is not None else math.inf
        found = [
            (size, length)
            for shorter, length in pairwise((0, *self.batch_lengths))
            for size in sizes
            # A row that is too large for a batch runs in a call of the smallest size.
            if shorter < costliest and (size * length <= most or size == sizes[-1])
        ]
        return [*sorted(found, key=math.prod, reverse=True)]

    @property
    def sorts(self) -> bool:
        """Whether batches are chosen by length from those that wait."""
        return self.padded and self.sort_window > 0

    @property
    def usual_rows(self) -> int:
        """The rows of a batch for which messages are fetched before any batch has run."""
        is_largest = self.max_batch_size >= _MANY_ROWS  # which need not be what the user expects
        return _USUAL_ROWS if self.max_batch_cost and is_largest else self.max_batch_size

    @property
    def max_batch_work(self) -> float:
        """Most work in one model call, in cost, or in its rows where cost is not limited."""
        return self.max_batch_size if self.max_batch_cost is None else self.max_batch_cost

    def work_of(self, rows: int, cost: float) -> float:
        """Return the work of a request in the unit of `max_batch_work`, without padding."""
        if self.max_batch_cost is None:
            return rows
        return cost * rows if self.padded else cost

    @property
    def linger_seconds(self) -> float:
        """The linger time, as given or the default, and never longer than ``max_wait``."""
        linger = DEFAULT_LINGER if self.linger is None else self.linger
        return min(linger, self.max_wait)


def require(is_valid: object, name: str, expected: str, value: object) -> None:
    """Raise ConfigurationError for an option or a setting that is not valid."""
    if not is_valid:
        raise ConfigurationError(f"{name}: must be {expected}, got {value!r}")


def is_whole(value: object, least: int) -> bool:
    """Return whether a value is a whole number that is not below a bound."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def is_above_zero(value: object) -> bool:
    """Return whether a value is a finite number above 0."""
    return _is_finite(value) and value > 0  # type: ignore[operator]
