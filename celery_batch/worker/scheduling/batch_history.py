"""What is known of the batches of one task that have left its queue."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from celery_batch.batching.batch import Batch
from celery_batch.worker.dispatch.follow_up import BatchEnd

__all__ = ["LATEST", "BatchHistory"]

#: The part of what is usual that the latest one decides.
LATEST = 0.2

#: Seconds after its latest batch for which a task counts as one that shares the device.
_IN_USE = 60.0


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
        self.usual_seconds = _smoothed(self.usual_seconds, answer.work.seconds / batches)
        self.usual_collating = _smoothed(self.usual_collating, answer.work.collating)

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


def _smoothed(usual: float, latest: float) -> float:
    """Return what is usual after the latest value, unless that is 0 and so unknown."""
    return usual + LATEST * (latest - usual) if usual and latest else latest or usual
