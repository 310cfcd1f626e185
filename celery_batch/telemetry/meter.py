"""Counts of all batches of a worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from copy import deepcopy
from operator import add
from typing import Any

from celery_batch.telemetry.histogram import Histogram
from celery_batch.telemetry.report import NO_REUSE, BatchReport, End, RequestEnd, Reuse

__all__ = ["DeviceIdle", "Meter", "Tally"]

_SIZES = tuple(1 << n for n in range(11))
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Seconds: from a trivial function (10 us) over a lone request (0.5 ms) to the slowest of
#: large models.
_SECONDS = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005,
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


class Tally:
    """Counts of the batches of one task."""

    def __init__(self) -> None:
        self.sizes, self.fill = Histogram(_SIZES), Histogram(_SHARES)
        self.wait, self.model = Histogram(_SECONDS), Histogram(_SECONDS)
        self.rows = self.calls = 0
        self.isolated = self.split = self.out_of_memory = self.poison = self.padding_rows = 0
        self.cost = self.padded_cost = 0.0
        self.reuse = NO_REUSE
        self.reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    def add(self, report: BatchReport) -> None:
        """Add one batch."""
        work = report.work
        self.rows += report.rows
        self.reasons[report.reason] += 1
        self.ends[report.end] += 1
        self.outcomes.update(report.outcomes)
        self.sizes.add(report.rows)
        self.fill.add(report.fill)
        self.poison += report.poison
        self.cost += work.cost
        self.padded_cost += work.padded_cost
        self.padding_rows += work.padding_rows
        if work.reuse is not NO_REUSE:
            self.reuse = Reuse(*map(add, self.reuse, work.reuse))
        if work.began is not None:
            self.wait.add_all(report.waits)
            self.model.add(work.seconds)
            self.calls += work.calls
            self.isolated += work.isolated
            self.split += work.split
            self.out_of_memory += work.out_of_memory

    @property
    def losses(self) -> int:
        """How many batches the pool processes have not answered."""
        return sum(self.ends[each] for each in (End.LOST, End.TIME_LIMIT, End.ERROR))

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
                "split": self.split,
                "out_of_memory": self.out_of_memory,
                "poison": self.poison,
            },
        }


def _spread(histogram: Histogram) -> dict[str, float | None]:
    quantiles = {f"p{n}": _rounded(histogram.quantile(n / 100)) for n in (50, 95, 99)}
    return {"mean": _rounded(histogram.mean), **quantiles}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 6)


class DeviceIdle:
    """Adds up the time in which a worker's pool processes ran no model, since all were ready."""

    def __init__(self, since: float) -> None:
        #: The seconds of all processes together up to `_updated`.
        self._total = 0.0
        self._updated = since
        self._busy = self._returned = 0.0
        #: When the last model call of each process ended; on the threads pool calls overlap.
        self._ended: dict[int, float] = {}

    def ran(self, pid: int, began: float, ended: float) -> None:
        """Record that a process ran a model call."""
        self._busy += self._since_last_end(pid, began, ended)
        self._ended[pid] = max(ended, self._ended.get(pid, ended))

    def seconds(self, now: float, busy: Mapping[int, float], processes: int) -> float:
        """Return how long processes were idle; `busy` says since when those with a batch run it."""
        self._total += processes * (now - self._updated)
        self._updated = now
        running = sum(self._since_last_end(pid, began, now) for pid, began in busy.items())
        self._returned = max(self._returned, self._total - self._busy - running)
        return self._returned

    def _since_last_end(self, pid: int, began: float, ended: float) -> float:
        return max(ended - max(began, self._ended.get(pid, began)), 0.0)


class Meter:
    """Counts batches and requests, task by task; without a clock, and without a lock."""

    def __init__(self, since: float) -> None:
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.since = since
        self.idle = DeviceIdle(since)

    def add(self, report: BatchReport) -> None:
        """Add one batch."""
        self.tallies[report.task].add(report)
        work, pid = report.work, report.pid
        if pid is None:
            return
        if work.began is not None and work.ended is not None:
            self.idle.ran(pid, work.began, work.ended)
        if report.end in {End.LOST, End.TIME_LIMIT} and report.taken is not None:
            self.idle.ran(pid, *report.taken)

    def add_outcome(self, task: str, outcome: RequestEnd) -> None:
        """Add a request that ended without a batch."""
        self.tallies[task].outcomes[outcome] += 1

    def copy(self) -> dict[str, Tally]:
        """Return a copy of the counts, by task."""
        return deepcopy(dict(self.tallies))

    def tally(self, task: str) -> Tally:
        """Return a task's counts."""
        return self.tallies.get(task) or Tally()
