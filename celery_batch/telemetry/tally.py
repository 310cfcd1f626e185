"""Counts of the batches of one task."""

from __future__ import annotations

from collections import Counter
from operator import add
from typing import Any

from celery_batch.telemetry.histogram import Histogram
from celery_batch.telemetry.report import NO_REUSE, BatchReport, End, Reuse

__all__ = ["Tally"]

_SIZES = tuple(1 << n for n in range(11))
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Seconds: from a trivial function (10 us) over a lone request (0.5 ms) to the slowest of
#: large models.
_SECONDS = (
    *(0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0),
)


class Tally:
    """Counts of the batches of one task."""

    def __init__(self) -> None:
        self.sizes, self.fill = Histogram(_SIZES), Histogram(_SHARES)
        self.wait, self.model = Histogram(_SECONDS), Histogram(_SECONDS)
        self.requests = self.rows = self.calls = 0
        self.isolated = self.out_of_memory = self.poison = 0
        self.reuse = NO_REUSE
        self.reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Tally of {self.ends.total()} batches>"

    def add(self, report: BatchReport) -> None:
        """Add one batch."""
        work = report.work
        self.requests += report.requests
        self.rows += report.rows
        self.reasons[report.reason] += 1
        self.ends[report.end] += 1
        for outcome, count in report.outcomes.items():
            self.outcomes[outcome] += count
        self.sizes.add(report.rows)
        self.fill.add(report.fill)
        self.poison += report.poison
        if work.reuse is not NO_REUSE:
            self.reuse = Reuse(*map(add, self.reuse, work.reuse))
        if work.began is not None:
            self.wait.add_all(report.waits)
            self.model.add(work.seconds)
            self.calls += work.calls
            self.isolated += work.isolated
            self.out_of_memory += work.out_of_memory

    def summary(self) -> dict[str, Any]:
        """Return the counts as plain data; times in seconds."""
        ends = {str(end): count for end, count in self.ends.items() if end != End.ANSWERED}
        return {
            "ended": self.ends.total(),
            "fill": _rounded(self.fill.mean),
            "wait": {**_spread(self.wait), "buckets": self.wait.buckets()},
            "model": {**_spread(self.model), "seconds": round(self.model.sum, 6)},
            "outcomes": {str(each): count for each, count in self.outcomes.items()},
            "trouble": {
                **ends,
                "isolated": self.isolated,
                "out_of_memory": self.out_of_memory,
                "poison": self.poison,
            },
        }


def _spread(histogram: Histogram) -> dict[str, float | None]:
    quantiles = {f"p{n}": _rounded(histogram.quantile(n / 100)) for n in (50, 95, 99)}
    return {"mean": _rounded(histogram.mean), **quantiles}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 6)
