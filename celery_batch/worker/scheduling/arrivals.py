"""The arrivals of a task's requests, recorded for as long as a client asks for them."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["Arrivals"]

#: Arrivals that are kept until they are read.
_MOST = 50_000


class Arrivals:
    """Numbered arrivals, kept until their reader says that it has them: a reply can be lost."""

    def __init__(self) -> None:
        #: Whether arrivals are to be noted.
        self.is_on = False
        #: When each came, on the monotonic clock, its cost and its rows.
        self._kept: deque[tuple[float, float, int]] = deque(maxlen=_MOST)
        self._next = 0
        self._until = 0.0

    def note(self, arrived: float, cost: float, rows: int) -> None:
        """Keep an arrival, unless the time of the recording is over."""
        self.is_on = arrived <= self._until
        if self.is_on:
            self._kept.append((arrived, cost, rows))
            self._next += 1
        else:
            self._kept.clear()

    def record(
        self, seconds: float, number: int | None
    ) -> tuple[list[tuple[float, float, int]], int]:
        """Record for some seconds; return the arrivals from a number on, and the next number."""
        if number is None or not self.is_on:  # None is for a new record
            self._kept.clear()
            self._next = number = number or 0
        self.is_on, self._until = True, time.monotonic() + seconds
        while self._kept and self._next - len(self._kept) < number:
            self._kept.popleft()
        return list(self._kept), self._next
