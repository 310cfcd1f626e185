"""How long this process's requests took lately."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Latencies"]

#: Requests remembered at most: what 400 a second make in the seconds that are looked at.
_MOST = 4096

#: Seconds that percentiles look back.
WINDOW = 10.0

_SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


class Latencies:
    """
    Remembers the last requests; to note one costs next to nothing, as it must.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def observe(self, seconds: float) -> None:
        """Note that a request has been answered after so many seconds."""
        self._seen.append((self._clock(), seconds))

    def summary(self) -> dict[str, Any]:
        """Return how many requests the last seconds had, and percentiles in seconds."""
        since = self._clock() - WINDOW
        # A copy first: other threads go on noting.
        took = sorted(seconds for ended, seconds in list(self._seen) if ended >= since)
        percentiles = {name: _nearest(took, share) for name, share in _SHARES.items()}
        return {"requests": len(took), "window": WINDOW, **percentiles}


def _nearest(ordered: list[float], share: float) -> float | None:
    """Return the smallest value that at least this share of all is not above."""
    if not ordered:
        return None
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
