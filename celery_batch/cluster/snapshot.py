"""The state of all workers at one moment, and the growth between two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ClusterSnapshot", "Growth", "grown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """
    What was found at one moment.

    Args:
        time: Seconds, on a clock that never goes back.
        answers: What each worker has said to ``batch_stats``.
        depths: Messages that wait in the broker, by queue.
        error: Why the broker could not be asked; empty if it could.
    """

    time: float
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    depths: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class Growth:
    """
    By how much one task's counts have grown in one worker, or in several.

    Args:
        batches: How many have left.
        rows: How many were in them.
        ended: Batches that have ended.
        model: Seconds that these were in the model.
        sizes: Batches by the largest size of their kind.
        waits: Requests by the most seconds that those of their kind have waited.
    """

    batches: int = 0
    rows: int = 0
    ended: int = 0
    model: float = 0.0
    sizes: dict[int, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)

    def add(self, other: Growth) -> None:
        """Add what another worker has done."""
        self.batches += other.batches
        self.rows += other.rows
        self.ended += other.ended
        self.model += other.model
        for size, count in other.sizes.items():
            self.sizes[size] = self.sizes.get(size, 0) + count
        for upto, count in other.waits.items():
            self.waits[upto] = self.waits.get(upto, 0) + count


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> Growth:
    """
    Return what happened between two reports of one task by one worker.

    Args:
        before: The earlier report; empty for a worker that has begun since.
        after: The later one.
    """
    first, last = _counts(before), _counts(after)
    if last.batches < first.batches or last.rows < first.rows:  # a worker that was started again
        first = Growth()
    sizes = {size: count - first.sizes.get(size, 0) for size, count in last.sizes.items()}
    return Growth(
        batches=last.batches - first.batches,
        rows=last.rows - first.rows,
        ended=last.ended - first.ended,
        model=last.model - first.model,
        sizes={size: count for size, count in sorted(sizes.items()) if count > 0},
        waits={upto: count - first.waits.get(upto, 0) for upto, count in last.waits.items()},
    )


def _counts(report: Mapping[str, Any]) -> Growth:
    return Growth(
        batches=report.get("batches", 0),
        rows=report.get("rows", 0),
        ended=report.get("ended", 0),
        model=(report.get("model") or {}).get("seconds") or 0.0,
        sizes={int(size): counts[0] for size, counts in report.get("sizes", {}).items()},
        waits=dict((report.get("wait") or {}).get("buckets") or {}),
    )
