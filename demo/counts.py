"""How many batches a worker has run, asked by Celery's remote control."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from celery import Celery

from celery_batch.errors import BatchError

__all__ = ["BatchCounts", "read_counts"]

#: Seconds the workers may take to answer; they answer between two batches.
_TIMEOUT = 15.0

#: Seconds to wait for replies between two calls of `check`.
_REPLY_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Batches of one task since its worker started, and the requests in them."""

    batches: int
    requests: int

    def mean_since(self, earlier: BatchCounts) -> float:
        """Return the mean batch size since an earlier count; nan without a batch since then."""
        batches = self.batches - earlier.batches
        return (self.requests - earlier.requests) / batches if batches else math.nan


def read_counts(
    broker_url: str, task: str, *, check: Callable[[], object] = lambda: None
) -> BatchCounts:
    """
    Ask a worker how many batches of a task it has run.

    `check` is called about once a second; what it raises ends the waiting.

    Raises:
        BatchError: None has answered.
    """
    deadline = time.monotonic() + _TIMEOUT
    with Celery(broker=broker_url) as app:
        ask = partial(app.control.broadcast, "batch_status", reply=True, limit=1)
        while not (replies := ask(timeout=_REPLY_TIMEOUT)):
            check()
            if time.monotonic() > deadline:
                raise BatchError("no worker answered batch_status")
    (status,) = replies[0].values()
    counts = status.get(task, {})  # a task that has not been called yet has none
    return BatchCounts(counts.get("batches", 0), counts.get("requests", 0))
