"""
What a worker remembers of messages, should they be delivered to it again.

Brokers deliver again what they have not heard to be done with: after a lost
connection, and after a crash of their own also what was acknowledged just
before.  What runs here is not run a second time; what has been answered is only
acknowledged; and what had not been started is no suspect.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

from celery_batch.worker.job import BatchJob

__all__ = ["Known", "Returns"]

#: Enough for everything a worker can hold; older ones have long come back, or went elsewhere.
_LONGEST_MEMORY = 10_000


class Known(Enum):
    """What is known of a message that came again, beside the job that runs it."""

    ANSWERED = auto()
    NEVER_RAN = auto()


class Returns:
    """The fate of each request whose message may come again."""

    def __init__(self) -> None:
        self._fates: OrderedDict[tuple[str, int], Known | BatchJob] = OrderedDict()
        self._losses: dict[tuple[str, int], int] = {}
        self._lock = threading.RLock()  # jobs end on threads, and in signal handlers

    def __len__(self) -> int:
        return len(self._fates)

    def never_ran(self, requests: Iterable[Any]) -> None:
        """Take note of requests that are given back without having run since."""
        with self._lock:
            for request in requests:
                self._keep(request.key, Known.NEVER_RAN)
                if request.losses:
                    self._losses[request.key] = request.losses

    def still_run(self, job: BatchJob) -> None:
        """Take note of requests that run on while their messages go back."""
        with self._lock:
            for request in job.requests:
                self._keep(request.key, job)

    def ended(self, request: Any) -> None:
        """
        Take note that a request has heard how it ended.

        Args:
            request: Celery's request; one that was rejected may be meant to come again.
        """
        with self._lock:
            self._keep(request.key, Known.NEVER_RAN if request.was_rejected else Known.ANSWERED)

    def all_answered(self, requests: Iterable[Any]) -> None:
        """Take note of requests whose results are stored and whose messages are acknowledged."""
        with self._lock:
            for request in requests:
                self._keep(request.key, Known.ANSWERED)

    def recognise(self, request: Any) -> Known | BatchJob | None:
        """
        Return what is known of a request whose message was delivered again, once.

        Args:
            request: Celery's request; its count of losses is filled in.
        """
        if not request.is_redelivered:
            return None
        with self._lock:
            request.losses = max(request.losses, self._losses.pop(request.key, 0))
            fate = self._fates.pop(request.key, None)
        if isinstance(fate, BatchJob) and fate.has_ended:
            return None  # stopped before it had an answer, or just about to be told
        return fate

    def _keep(self, key: tuple[str, int], fate: Known | BatchJob) -> None:
        self._fates.pop(key, None)
        self._fates[key] = fate  # behind all others
        while len(self._fates) > _LONGEST_MEMORY:
            old, _ = self._fates.popitem(last=False)
            self._losses.pop(old, None)
