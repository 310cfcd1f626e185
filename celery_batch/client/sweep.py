"""Finds what a missed notification would have told of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from celery_batch.client.inbox import Inbox
from celery_batch.client.store import ResultStore

__all__ = ["Sweeper"]

logger = logging.getLogger(__name__)

#: Ids asked for in one command.
PIECE = 500

#: Seconds it sleeps for each second that it reads, when much is due.
REST = 4.0

#: Most seconds that it sleeps, however long it has read.
LONGEST_REST = 1.0


class Sweeper:
    """
    Looks in the store for replies that somebody waits for and nobody has told of.

    Args:
        inbox: The replies.
        store: Where results are stored.
        look_after: Called about once a second, to see whether others still work.
    """

    def __init__(self, inbox: Inbox, store: ResultStore, look_after: Callable[[], object]) -> None:
        self._inbox = inbox
        self._store = store
        self._look_after = look_after
        #: Free when rung; an Event's own lock would stop a signal handler that rings, too.
        self._bell = threading.Lock()
        self._is_open = True
        self._is_failing = False

    def hurry(self) -> None:
        """Look now for what is due."""
        with suppress(RuntimeError):  # rung already
            self._bell.release()

    def close(self) -> None:
        """End soon."""
        self._is_open = False
        self.hurry()

    def run(self) -> None:
        """Look whenever something is due, until closed."""
        rest = 0.0
        while self._is_open:
            wait = min(max(self._inbox.next_look() - time.monotonic(), rest), 1.0)
            if rest:
                time.sleep(rest)
            else:
                self._bell.acquire(timeout=wait)
            self._look_after()
            rest = self._sweep()
            if self._inbox.close_barriers():
                rest = max(rest, 0.02)
        self._store.close()

    def _sweep(self) -> float:
        """Look for one piece; return for how long to rest."""
        began = time.monotonic()
        try:
            task_ids = self._inbox.take(PIECE)
            if not task_ids:
                return 0.0
            before = self._inbox.latest(task_ids)
            found = self._store.read(task_ids)
            news = {name: value for name, value in found if value != (before[name] or b"")}
            ends = {name for name, value in news.items() if value and self._store.is_final(value)}
            self._inbox.deliver((name, news[name]) for name in ends)
            self._inbox.note(((name, news[name]) for name in news.keys() - ends), before)
        except Exception as error:  # noqa: BLE001 (whatever it is, waiting ones must be looked for)
            if not self._is_failing:
                logger.warning("Cannot look for results: %s", error)
            self._is_failing = True
            return 0.1
        self._is_failing = False
        return min(REST * (time.monotonic() - began), LONGEST_REST)
