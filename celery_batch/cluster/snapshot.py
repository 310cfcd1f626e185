"""Statistics of all workers at one moment, and their growth between two moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ClusterSnapshot", "Growth", "grown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The statistics of all workers at one moment."""

    #: On a monotonic clock.
    time: float
    #: The answer of each worker to ``batch_stats``.
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Messages that wait in the broker, by queue.
    depths: Mapping[str, int] = field(default_factory=dict)
    #: Why the broker could not be reached; empty if it could.
    error: str = ""


@dataclass(slots=True)
class Growth:
    """The growth of one task's counts in one worker, or in several."""

    #: Batches that have left.
    batches: int = 0
    #: Their rows.
    rows: int = 0
    #: Batches that have ended.
    ended: int = 0
    #: Seconds that these took in the model.
    model: float = 0.0
    #: What was computed, in cost or in rows, where padding is known.
    computed: float = 0.0
    #: How much of it was padding.
    padding: float = 0.0
    #: Batches, by the upper bound of their size.
    sizes: Counter[int] = field(default_factory=Counter)
    #: Requests, by the upper bound of their wait in seconds.
    waits: Counter[str] = field(default_factory=Counter)

    def add(self, other: Growth) -> None:
        """Add the growth of another worker."""
        self.batches += other.batches
        self.rows += other.rows
        self.ended += other.ended
        self.model += other.model
        self.computed += other.computed
        self.padding += other.padding
        self.sizes.update(other.sizes)
        self.waits.update(other.waits)


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> Growth:
    """Return the growth between two reports of one task by one worker, the first perhaps empty."""
    first, last = _counts(before), _counts(after)
    if last.batches < first.batches or last.rows < first.rows:  # the worker was restarted
        first = Growth()
    last.waits.subtract(first.waits)  # keeps empty buckets, whose bounds the quantiles need
    return Growth(
        batches=last.batches - first.batches,
        rows=last.rows - first.rows,
        ended=last.ended - first.ended,
        model=last.model - first.model,
        computed=last.computed - first.computed,
        padding=last.padding - first.padding,
        sizes=last.sizes - first.sizes,
        waits=last.waits,
    )


def _counts(report: Mapping[str, Any]) -> Growth:
    computed, padding = _padding(report)
    return Growth(
        batches=report.get("batches", 0),
        rows=report.get("rows", 0),
        ended=report.get("ended", 0),
        model=(report.get("model") or {}).get("seconds") or 0.0,
        computed=computed,
        padding=padding,
        sizes=Counter({int(size): counts[0] for size, counts in report.get("sizes", {}).items()}),
        waits=Counter((report.get("wait") or {}).get("buckets")),
    )


def _padding(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return what was computed, and how much of it was padding; 0 where that is not counted."""
    if "padded_cost" in report:
        return report["padded_cost"], report["padded_cost"] - report["cost"]
    padding = report.get("padding_rows")
    return (0.0, 0.0) if padding is None else (report["rows"] + padding, padding)
