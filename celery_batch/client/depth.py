"""
How many items wait in one queue, as far as this process knows.

What a look at the broker has found, with what was sent since and less what has left
meanwhile, at the rate seen between looks.  Pure: it is told the time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["FRESH", "Depth"]

#: Seconds for which a look says something.
FRESH = 1.0

#: Seconds over which the rate of leaving is averaged: they leave in batches.
_MEMORY = 2.0

#: Seconds that a caller is told to wait: at least, where nothing is known, and at most.
_SOONEST, _USUAL, _LATEST = 0.05, 1.0, 60.0


class _Look(NamedTuple):
    """How many messages waited, what we had sent by then, and when that was."""

    waiting: int
    items: int
    messages: int
    time: float


class Depth:
    """What is known of one queue."""

    def __init__(self) -> None:
        #: Items that this process has let pass to it, and messages that they came in: a chunk
        #: is one.  Threads may lose one now and then.
        self.items = 0
        self.messages = 0
        #: When somebody last asked.
        self.asked = -math.inf
        #: Messages a second that leave it; 0 where none was seen to.
        self.rate = 0.0
        self._look: _Look | None = None

    def add(self, items: int, messages: int) -> None:
        """
        Count in what is about to be sent.

        Args:
            items: How many.
            messages: In how many messages.
        """
        self.items += items
        self.messages += messages

    def note(self, waiting: int, now: float) -> None:
        """
        Take down what a look has found.

        Args:
            waiting: Messages in the queue.
            now: Seconds, of a clock that never goes back.
        """
        before, self._look = self._look, _Look(waiting, self.items, self.messages, now)
        if before is None or now <= before.time or now - before.time > FRESH:
            self.rate = 0.0
            return
        passed = now - before.time
        left = max(before.waiting + self.messages - before.messages - waiting, 0)
        self.rate += (left / passed - self.rate) * min(passed / _MEMORY, 1.0)

    def at(self, now: float) -> float | None:
        """
        Return how many items wait by now; None where that is not known.

        Args:
            now: Seconds, of the same clock.
        """
        look = self._look
        if look is None or now - look.time > FRESH:
            return None
        left = self.rate * (now - look.time)
        return max(look.waiting + self.items - look.items - left, 0.0)

    def seconds_until(self, room: float, now: float) -> float:
        """
        Return after how many seconds a caller may find room.

        Args:
            room: How many items have to leave first.
            now: Seconds, of the same clock.
        """
        if self.at(now) is None or self.rate <= 0.0:
            return _USUAL
        return min(max(room / self.rate, _SOONEST), _LATEST)
