"""Which replies are looked for, and when."""

from __future__ import annotations

import time

from celery_batch.client.reply import Reply
from celery_batch.client.rounds import Round

__all__ = ["FOLLOW", "STRAY", "SWEEP", "Looks"]

#: Seconds between two looks at what a missed notification would have told of.
SWEEP = 0.9

#: Seconds between two looks at what nobody tells us of.
STRAY = 0.2

#: Seconds between two looks at a task whose states are followed.
FOLLOW = 0.5


class Looks:
    """The replies of one inbox that are looked for; whoever calls has the inbox's lock."""

    def __init__(self) -> None:
        self._told = Round(SWEEP)
        self._strays = Round(STRAY)
        self._followed = Round(FOLLOW)
        #: Those of whom nothing is known as yet.
        self._fresh = Round(0.0)

    def __len__(self) -> int:
        """Return how many looks are due some time."""
        return sum(map(len, self._rounds()))

    def watch(self, reply: Reply, *, is_urgent: bool) -> None:
        """Look for a reply: soon, or in case we should not hear of it."""
        if is_urgent:
            self._strays.add(reply, 0.0)
        else:
            self._told.add(reply, time.monotonic() + SWEEP)

    def follow(self, reply: Reply) -> bool:
        """Look for whatever is stored of a task; return whether a look is due at once."""
        due = reply.since + FOLLOW
        is_fresh = due <= time.monotonic()
        if is_fresh:
            self._fresh.add(reply, 0.0)
        else:
            self._followed.add(reply, due)
        return is_fresh

    def drop(self, reply: Reply) -> None:
        """Look no more for what nobody waits for any more."""
        if not reply.watchers:
            self._told.drop(reply)
            self._strays.drop(reply)
        if not reply.followers:
            self._followed.drop(reply)
            self._fresh.drop(reply)

    def take(self, most: int) -> list[str]:
        """Return ids that should be looked for now, those first that waited longest."""
        now = time.monotonic()
        due = self._strays.take(now, most)
        due += self._told.take(now, most - len(due))
        for reply in due:
            (self._told if reply.is_told else self._strays).put_off(reply, now)
        followed = self._fresh.take(now, most - len(due))
        followed += self._followed.take(now, most - len(due) - len(followed))
        for reply in followed:
            self._followed.put_off(reply, now)
            reply.since = now
        return list(dict.fromkeys(reply.task_id for reply in (*due, *followed)))

    def next_due(self) -> float:
        """Return when a look is due, by the monotonic clock."""
        return min(each.next_due() for each in self._rounds())

    def all_due(self) -> None:
        """Have all looks due at once."""
        for each in (self._told, self._strays, self._followed):
            each.all_due()

    def _rounds(self) -> tuple[Round, ...]:
        return self._strays, self._told, self._followed, self._fresh
