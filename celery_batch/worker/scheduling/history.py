"""What is known of the requests that have come to a task queue, and of the batches that left."""

from __future__ import annotations

import time
from collections import Counter, deque
from math import inf
from typing import Any

from celery_batch.batching.batch import Batch
from celery_batch.worker.dispatch.follow_up import BatchEnd

__all__ = ["Arrivals", "BatchHistory", "smoothed"]

#: The part of what is usual that the latest one decides.
_LATEST = 0.2

#: Seconds after its latest batch for which a task counts as one that shares the device.
_IN_USE = 60.0

#: Arrivals that are kept until they are read.
_MOST_ARRIVALS = 50_000


class Arrivals:
    """Numbered arrivals, kept until their reader says that it has them: a reply can be lost."""

    def __init__(self) -> None:
        #: Whether arrivals are to be noted.
        self.is_on = False
        #: When each came, on the monotonic clock, its cost and its rows.
        self._kept: deque[tuple[float, float, int]] = deque(maxlen=_MOST_ARRIVALS)
        self._next = 0
        self._until = 0.0

    def note(self, arrived: float, cost: float, rows: int) -> None:
        """Keep an arrival, unless the time of the recording is over."""
        self.is_on = arrived <= self._until
        if self.is_on:
            self._kept.append((arrived, cost, rows))
            self._next += 1
        else:
            self._kept.clear()

    def record(
        self, seconds: float, number: int | None
    ) -> tuple[list[tuple[float, float, int]], int]:
        """Record for some seconds; return the arrivals from a number on, and the next number."""
        if number is None or not self.is_on:  # None is for a new record
            self._kept.clear()
            self._next = number = number or 0
        self.is_on, self._until = True, time.monotonic() + seconds
        while self._kept and self._next - len(self._kept) < number:
            self._kept.popleft()
        return list(self._kept), self._next


class BatchHistory:
    """Counts of the batches of one task, and how long they usually take."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.requests = self.rows = 0
        #: The work of these requests, in rows or in cost.
        self.work = 0.0
        #: For each power of two, how many batches of at most that many rows, and of more
        #: than half of it, and how many rows they had.
        self.sizes: dict[int, list[int]] = {}
        #: Most rows, or cost, that fit into memory; None until it ran out.
        self.safe_size: float | None = None
        #: Seconds of a whole batch in the model, as of late; 0 before one has ended.
        self.usual_seconds = 0.0
        #: Seconds for which the rows of a batch are collated beside the batch before, as of late.
        self.usual_collating = 0.0
        self._last_left = -inf

    def left(self, batch: Batch[Any], work: float, now: float) -> None:
        """Count a batch that leaves now, on the monotonic clock."""
        rows = batch.rows
        self._last_left = now
        self.reasons[batch.reason] += 1
        self.requests += len(batch)
        self.rows += rows
        self.work += work
        size = self.sizes.setdefault(1 << max(rows - 1, 0).bit_length(), [0, 0])
        size[0] += 1
        size[1] += rows

    def answered(self, answer: BatchEnd, batches: float) -> None:
        """Note what fits into memory, and how long so many whole batches have taken."""
        self.safe_size = answer.safe_size
        self.usual_seconds = smoothed(self.usual_seconds, answer.work.seconds / batches)
        self.usual_collating = smoothed(self.usual_collating, answer.work.collating)

    def was_in_use(self, now: float) -> bool:
        """Return whether a batch has left lately, on the monotonic clock."""
        return now - self._last_left < _IN_USE

    def report(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "batches": self.reasons.total(),
            "requests": self.requests,
            "rows": self.rows,
            "reasons": dict(self.reasons),
            "sizes": {str(size): [*counts] for size, counts in sorted(self.sizes.items())},
            "safe_size": self.safe_size,
        }


def smoothed(usual: float, latest: float) -> float:
    """Return what is usual after the latest value, unless that is 0 and so unknown."""
    return usual + _LATEST * (latest - usual) if usual and latest else latest or usual
