"""
Polls the results that no listener receives.

It also decodes large values, so that the thread that receives results does not.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from celery_batch.client.background import OnDemandThread, PerProcess

__all__ = ["LONGEST_PAUSE", "Poll", "Poller"]

logger = logging.getLogger(__name__)

#: Asks once; returns whether it need not be called again.
Poll = Callable[[], bool]

#: Seconds before the first and most seconds between two rounds.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5

#: Seconds it sleeps for each second that a round has taken, and at most.
_REST, _LONGEST_REST = 4.0, 1.0


class Poller(PerProcess):
    """Calls polls in rounds, with growing pauses, until each of them has ended."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._new: deque[Poll] = deque()
        self._polls: list[Poll] = []
        self._pause = SHORTEST_PAUSE
        self._next_round = 0.0
        self._thread = OnDemandThread("celery-batch-futures", self._work)

    def add(self, poll: Poll) -> None:
        """Have a function called soon, and again until it returns True."""
        self._new.append(poll)
        self._thread.wake()

    def _work(self) -> float | None:
        new = [self._new.popleft() for _ in range(len(self._new))]
        if waiting := [poll for poll in new if not _has_ended(poll)]:
            self._polls += waiting
            self._pause, self._next_round = SHORTEST_PAUSE, time.monotonic() + SHORTEST_PAUSE
        elif self._polls and time.monotonic() >= self._next_round:
            self._poll_all()
        return max(self._next_round - time.monotonic(), 0.0) if self._polls else None

    def _poll_all(self) -> None:
        began, before = time.monotonic(), len(self._polls)
        self._polls = [poll for poll in self._polls if not _has_ended(poll)]
        now = time.monotonic()
        has_found = len(self._polls) < before
        self._pause = SHORTEST_PAUSE if has_found else min(1.5 * self._pause, LONGEST_PAUSE)
        self._next_round = now + max(self._pause, min(_REST * (now - began), _LONGEST_REST))


def _has_ended(poll: Poll) -> bool:
    try:
        return poll()
    except Exception:
        logger.exception("A poll for a result has failed")
        return True
