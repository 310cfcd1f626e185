"""
Shares of something that several users take in turns, such as a device.

This is start-time fair queueing. Each use starts at a virtual time: where the last use of its
user ended, or at the present virtual time if that is later. The use that starts first goes
first, and the present is where the latest use that has begun started. So those who always
want more get parts in proportion to their weights; one that was idle gets no credit for that.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FairShare"]

K = TypeVar("K", bound=Hashable)


class FairShare(Generic[K]):
    """The virtual times of some users, each named by a key."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[K, float] = {}

    def start(self, key: K) -> float:
        """Return when the next use of a user would start; the smallest goes first."""
        return max(self._ends.get(key, 0.0), self._now)

    def charge(self, key: K, amount: float, weight: float = 1.0) -> float:
        """Charge a use to a user, and return when it starts; an estimate may be corrected later."""
        start = self.start(key)
        self._ends[key] = start + amount / weight
        return start

    def correct(self, key: K, amount: float, weight: float = 1.0) -> None:
        """Charge so much more to a user, or less, as an estimate was wrong."""
        self._ends[key] = self._ends.get(key, self._now) + amount / weight

    def begin(self, start: float) -> None:
        """Note that the use that starts then has begun."""
        self._now = max(self._now, start)
