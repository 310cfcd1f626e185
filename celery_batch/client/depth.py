"""
How many items wait in one queue, as far as this process knows.

Rules:

1. What a look at the broker has found, and what was let in since, counts as waiting.  That
   something left, only a look can say: who takes messages takes many at once and then none
   for long, so nothing follows from what left before.
2. What is let in is on its way for a while.  A look that began before it had landed in the
   queue may have missed it, so it counts beside what that look has found; but never more than
   was counted before the look, unless the look itself has found more.
3. Where nothing is known yet, the queue is taken for empty until the first look, and what was
   let in meanwhile counts.  Nobody is refused only where no look comes to anything.
4. Where the broker could not be reached, by a call or by a look, all that was let in counts
   until the next look: no more calls than may wait try a broker that is away.

So a process that is alone with a queue never lets in more than the limit says.  Pure but for
its guard: it is told the time.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

__all__ = ["FRESH", "Depth", "Landed"]

#: Seconds for which somebody who asks waits for a look, before all may come; and between two
#: looks, that a rate can be told from.
FRESH = 2.0

#: Seconds over which the rate of leaving is averaged: they leave in batches.
_MEMORY = 2.0

#: Seconds that a caller is told to wait: at least, where nothing is known, and at most.
_SOONEST, _USUAL, _LATEST = 0.05, 1.0, 60.0


class Landed(NamedTuple):
    """What this process has let in and is in the queue for sure, or never will be."""

    items: int = 0
    messages: int = 0


class _Look(NamedTuple):
    """How many messages waited, what had landed before, and when that was."""

    waiting: int
    messages: int
    time: float


class Depth:
    """What is known of one queue."""

    def __init__(self) -> None:
        #: Items that this process has let pass to it.
        self.items = 0
        #: When somebody last asked.
        self.asked = -math.inf
        #: Messages a second that leave it; 0 where none was seen to.
        self.rate = 0.0
        self._landed = Landed()
        #: What waits, less all that was ever let in.
        self._rest = 0
        self._look: _Look | None = None
        #: When somebody asked first since the last look.
        self._unanswered: float | None = None
        self._is_lost = False
        self._has_failed = False
        #: Reentrant, since a signal's handler may call a task, too.
        self._guard = threading.RLock()

    def ask(self, now: float) -> None:
        """
        Take down that somebody wants to know.

        Args:
            now: Seconds, of a clock that never goes back.
        """
        self.asked = now
        if self._unanswered is None:
            self._unanswered = now

    def let_in(self, items: int, most: int, now: float) -> int | None:
        """
        Count items in if there is room for all of them; else return how many wait.

        Args:
            items: How many.
            most: How many may wait.
            now: Seconds, of the same clock.
        """
        with self._guard:
            waiting = self.at(now)
            if waiting is not None and waiting + items > most:
                return waiting
            self.items += items
            return None

    def land(self, items: int, messages: int) -> None:
        """
        Take down that what was let in is on its way no more.

        Args:
            items: How many.
            messages: In how many messages they came: a chunk is one.
        """
        with self._guard:
            self._landed = Landed(self._landed.items + items, self._landed.messages + messages)

    def landed(self) -> Landed:
        """Return what a look that begins now will find, but for what has left."""
        return self._landed

    def note(self, waiting: int, landed: Landed, now: float) -> None:
        """
        Take down what a look has found.

        Args:
            waiting: Messages in the queue.
            landed: What had landed when it began.
            now: Seconds, of the same clock.
        """
        with self._guard:
            with_those_on_their_way = waiting - landed.items
            self._rest = max(waiting - self.items, min(self._rest, with_those_on_their_way))
            self._unanswered, self._is_lost, self._has_failed = None, False, False
            before, self._look = self._look, _Look(waiting, landed.messages, now)
        if before is None or now <= before.time or now - before.time > FRESH:
            self.rate = 0.0
            return
        passed = now - before.time
        left = max(before.waiting + landed.messages - before.messages - waiting, 0)
        self.rate += (left / passed - self.rate) * min(passed / _MEMORY, 1.0)

    def lose(self) -> None:
        """Take down that a look came to nothing, although the broker answers."""
        self._is_lost = True

    def fail(self) -> None:
        """Take down that a call or a look could not reach the broker."""
        self._has_failed = True

    @property
    def is_seen(self) -> bool:
        """Whether a look has come to something, or to nothing."""
        return self._is_lost or self._has_failed or self._look is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether the broker may be away, for all that is known."""
        return self._has_failed or self._look is None

    def has_waited(self, seconds: float, now: float) -> bool:
        """
        Return whether somebody has asked, and no look has come to anything, for so long.

        Args:
            seconds: For how long.
            now: Seconds, of the same clock.
        """
        return self._unanswered is not None and now - self._unanswered >= seconds

    def forget(self) -> None:
        """Take down that nobody looks any more: the next who asks begins anew."""
        with self._guard:
            self._rest = -self._landed.items
            self._look = self._unanswered = None
            self._is_lost, self._has_failed, self.rate = False, False, 0.0

    def at(self, now: float) -> int | None:
        """
        Return how many items wait by now; None where that is not known.

        Args:
            now: Seconds, of the same clock.
        """
        since = self._unanswered
        is_late = since is not None and now - since > FRESH and not self._has_failed
        if self._is_lost or is_late:
            return None
        return self._rest + self.items

    def seconds_until(self, room: float) -> float:
        """
        Return after how many seconds a caller may find room.

        Args:
            room: How many items have to leave first.
        """
        if self.rate <= 0.0:
            return _USUAL
        return min(max(room / self.rate, _SOONEST), _LATEST)
