"""When a batch leaves: the numbers that a user may set."""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_batch.errors import ConfigurationError

__all__ = ["DEFAULT_LINGER", "BatchPolicy"]

#: Seconds.  Longer than the gap between two messages of a burst, short beside a model call.
DEFAULT_LINGER = 0.002


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

    Raises:
        ConfigurationError: A value is not a number, or out of range.
    """

    max_batch_size: int = 32
    max_wait: float = 0.01
    linger: float | None = None
    low_priority_share: float = 0.1

    def __post_init__(self) -> None:
        size = self.max_batch_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigurationError(
                f"max_batch_size: must be a whole number of at least 1, got {size!r}"
            )
        _require_seconds("max_wait", self.max_wait)
        if self.linger is not None:
            _require_seconds("linger", self.linger)
        share = self.low_priority_share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 0.5:  # noqa: PLR2004
            raise ConfigurationError(
                f"low_priority_share: must be a number from 0 to 0.5, got {share!r}"
            )

    @property
    def linger_seconds(self) -> float:
        """The linger time: as given or the default, and never longer than ``max_wait``."""
        linger = DEFAULT_LINGER if self.linger is None else self.linger
        return min(linger, self.max_wait)


def _require_seconds(name: str, value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type,operator]
        raise ConfigurationError(f"{name}: must be seconds as a number from 0 up, got {value!r}")
