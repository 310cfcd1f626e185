"""In which order to look for what somebody waits for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_batch.client.reply import Reply

__all__ = ["Round"]


class Round:
    """
    Replies that are looked for in turn, each again after the same time.

    So the order in which they came is the order in which they are due.

    Args:
        interval: Seconds between two looks for the same reply.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._due: dict[Reply, float] = {}

    def __len__(self) -> int:
        """Return how many replies somebody waits for."""
        return len(self._due)

    def add(self, reply: Reply, due: float) -> None:
        """Look for a reply from a time on, unless that is done already."""
        self._due.setdefault(reply, due)

    def put_off(self, reply: Reply, now: float) -> None:
        """Look for a reply again, last of all."""
        self._due.pop(reply, None)  # else it would keep its place
        self._due[reply] = now + self.interval

    def drop(self, reply: Reply) -> None:
        """Look for a reply no more."""
        self._due.pop(reply, None)

    def take(self, now: float, most: int) -> list[Reply]:
        """Take out the replies whose time has come, at most so many."""
        taken: list[Reply] = []
        for reply, due in self._due.items():
            if due > now or len(taken) >= most:
                break
            taken.append(reply)
        for reply in taken:
            del self._due[reply]
        return taken

    def next_due(self) -> float:
        """Return when the next reply is due; infinity if there is none."""
        return next(iter(self._due.values()), math.inf)

    def all_due(self) -> None:
        """Have all of them due at once."""
        self._due = dict.fromkeys(self._due, 0.0)
