"""Recognises requests whose messages the broker has delivered again.

Brokers deliver again what was not acknowledged: after a lost connection, and after a crash of
their own also what was acknowledged just before.  A request that still runs here is not run a
second time; one that was answered is only acknowledged; one that never ran is no suspect.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_batch.worker.dispatch.job import BatchJob

__all__ = ["Known", "RedeliveryCache", "is_suspect"]

#: Enough for everything a worker can hold; older messages have come back, or went elsewhere.
_MOST_ENTRIES = 10_000


class Known(Enum):
    """What is known of a request whose message was delivered again, if no job has it."""

    ANSWERED = auto()
    NEVER_RAN = auto()


class RedeliveryCache:
    """What happened to each request whose message may be delivered again."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, int], Known | BatchJob] = OrderedDict()
        self._losses: dict[tuple[str, int], int] = {}
        self._lock = threading.RLock()  # jobs end on threads, and in signal handlers

    def __len__(self) -> int:
        return len(self._entries)

    def add_not_run(self, requests: Iterable[Any]) -> None:
        """Record requests that are given back to the broker and have not run since they came."""
        with self._lock:
            for request in requests:
                self._add(request.key, Known.NEVER_RAN)
                if request.losses:
                    self._losses[request.key] = request.losses

    def add_running(self, job: BatchJob) -> None:
        """Record the requests of a job that still runs while their messages go back."""
        with self._lock:
            for request in job.requests:
                self._add(request.key, job)

    def add_ended(self, requests: Iterable[Any]) -> None:
        """Record requests that have ended; a rejected one may be meant to run again."""
        with self._lock:
            for request in requests:
                self._add(request.key, Known.NEVER_RAN if request.was_rejected else Known.ANSWERED)

    def pop(self, request: Any) -> Known | BatchJob | None:
        """Remove and return what is known of a request; its count of losses is filled in."""
        if not request.is_redelivered:
            return None
        with self._lock:
            request.losses = max(request.losses, self._losses.pop(request.key, 0))
            known = self._entries.pop(request.key, None)
        if isinstance(known, BatchJob) and known.has_ended:
            return None  # it has ended without an answer, or its end is about to be announced
        return known

    def _add(self, key: tuple[str, int], known: Known | BatchJob) -> None:
        self._entries.pop(key, None)
        self._entries[key] = known  # behind all others
        while len(self._entries) > _MOST_ENTRIES:
            oldest, _ = self._entries.popitem(last=False)
            self._losses.pop(oldest, None)


def is_suspect(request: Any, consumer: Any) -> bool:
    """
    Return whether a request may have killed the worker that had it before.

    On Redis that is counted in the message, wherever it was held.  Elsewhere a
    worker with pool processes outlives them, and knows which requests they ran; if the whole
    worker went down, one item is hardly the reason, unless it happens again and again.
    """
    if not request.is_redelivered or consumer.connection.transport.driver_type == "redis":
        return False
    return not isinstance(consumer.pool, PreforkPool) or request.deliveries > 1
