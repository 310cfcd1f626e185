"""When the requests of a task arrive, and what they cost, for a recorded trace."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["ArrivalRecorder"]

#: Arrivals that are kept until they are read.
_MOST = 50_000


class ArrivalRecorder:
    """
    Numbered arrivals, kept until their reader says that it has them, since a reply can be lost.

    Args:
        number: The number of the first arrival.
    """

    def __init__(self, number: int = 0) -> None:
        self._arrivals: deque[tuple[float, float, int]] = deque(maxlen=_MOST)
        self._next = number
        self._until = 0.0

    def note(self, arrived: float, cost: float, rows: int) -> bool:
        """Keep an arrival, on the monotonic clock; return False where the recording is over."""
        if arrived > self._until:
            return False
        self._arrivals.append((arrived, cost, rows))
        self._next += 1
        return True

    def read(self, number: int, seconds: float) -> tuple[list[tuple[float, float, int]], int]:
        """
        Return the arrivals from a number on, and the next number; forget those before.

        Args:
            number: The first arrival that the reader does not have.
            seconds: For how long, from now on, arrivals are recorded.
        """
        self._until = time.monotonic() + seconds
        while self._arrivals and self._next - len(self._arrivals) < number:
            self._arrivals.popleft()
        return list(self._arrivals), self._next
