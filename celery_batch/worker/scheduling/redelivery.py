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

from celery_batch.worker.dispatch.batch_job import BatchJob

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
        #: With how often its process died, as far as it matters.
        self._entries: OrderedDict[tuple[str, int], tuple[Known | BatchJob, int]] = OrderedDict()
        self._lock = threading.RLock()  # jobs end on threads, and in signal handlers

    def add_not_run(self, requests: Iterable[Any]) -> None:
        """Record requests that are given back to the broker and have not run since they came."""
        with self._lock:
            for request in requests:
                self._add(request.key, Known.NEVER_RAN, request.losses)

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
            known, losses = self._entries.pop(request.key, (None, 0))
        request.losses = max(request.losses, losses)
        if isinstance(known, BatchJob) and known.has_ended:
            return None  # it has ended without an answer, or its end is about to be announced
        return known

    def _add(self, key: tuple[str, int], known: Known | BatchJob, losses: int = 0) -> None:
        self._entries[key] = known, losses
        self._entries.move_to_end(key)
        if len(self._entries) > _MOST_ENTRIES:
            self._entries.popitem(last=False)


def is_suspect(request: Any, consumer: Any) -> bool:
    """Return whether a request may have killed the worker that had it before."""
    # Redis' messages count that.  Elsewhere a worker outlives its pool processes, and knows what
    # they ran; if it went down itself, one item is no reason, unless it happens again.
    if not request.is_redelivered or consumer.connection.transport.driver_type == "redis":
        return False
    if request.deliveries is not None:  # a worker that is told to end returns what has not run
        return bool(request.deliveries > 1)
    return not isinstance(consumer.pool, PreforkPool)
