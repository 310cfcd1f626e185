"""
The state of all workers over the last seconds: rates, shares, silent workers.

It has no clock and sends no requests: snapshots go in, views come out.  A worker that does
not answer may be busy: it is shown as silent for a while before it is forgotten.  Rates need
two snapshots, and are None after one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from celery_batch.telemetry.histogram import Histogram

__all__ = [
    "ClusterSnapshot",
    "ClusterState",
    "TaskView",
    "WorkerView",
    "grown",
    "reports_of",
    "runs_batches",
]

#: Seconds for which a worker that does not answer is remembered.
_SILENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The statistics of all workers at one moment."""

    time: float  # on a monotonic clock
    #: The answer of each worker to ``batch_stats``.
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Messages that wait in the broker, by queue.
    depths: Mapping[str, int] = field(default_factory=dict)
    error: str = ""  # why the broker could not be reached; empty if it could


@dataclass(slots=True)
class Growth:
    """The growth of one task's counts in one worker, or in several."""

    batches: int = 0  # batches that have left
    rows: int = 0  # their rows
    ended: int = 0  # batches that have ended
    model: float = 0.0  # seconds that these took in the model
    computed: float = 0.0  # what was computed, in cost or in rows, where padding is known
    padding: float = 0.0  # how much of it was padding
    #: Batches, by the upper bound of their size.
    sizes: Counter[int] = field(default_factory=Counter)
    #: Requests, by the upper bound of their wait in seconds.
    waits: Counter[str] = field(default_factory=Counter)
    #: Requests of a task with a latency target: ``in_time``, ``late`` or ``refused``.
    targets: Counter[str] = field(default_factory=Counter)

    @property
    def late(self) -> float | None:
        """The share of the results that missed the latency target; None if there are none."""
        results = self.targets["in_time"] + self.targets["late"]
        return self.targets["late"] / results if results else None

    def add(self, other: Growth, sign: int = 1) -> None:
        """Add the growth of another worker; subtract it if the sign is -1."""
        for each in fields(self):
            own, more = getattr(self, each.name), getattr(other, each.name)
            if isinstance(own, Counter):  # empty buckets stay: the quantiles need their bounds
                (own.update if sign > 0 else own.subtract)(more)
            else:
                setattr(self, each.name, own + sign * more)


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> Growth:
    """Return the growth between two reports of one task by one worker, the first perhaps empty."""
    first, last = _counts(before), _counts(after)
    if last.batches >= first.batches and last.rows >= first.rows:  # else it was restarted
        last.add(first, -1)
    return last


def _counts(report: Mapping[str, Any]) -> Growth:
    computed, padding = _padding(report)
    latency = report.get("latency") or {}
    return Growth(
        batches=report.get("batches", 0),
        rows=report.get("rows", 0),
        ended=report.get("ended", 0),
        model=(report.get("model") or {}).get("seconds") or 0.0,
        computed=computed,
        padding=padding,
        sizes=Counter({int(size): counts[0] for size, counts in report.get("sizes", {}).items()}),
        waits=Counter((report.get("wait") or {}).get("buckets")),
        targets=Counter({name: latency.get(name, 0) for name in ("in_time", "late", "refused")}),
    )


def _padding(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return what was computed, and how much of it was padding; 0 where that is not counted."""
    if "padded_cost" in report:
        return report["padded_cost"], report["padded_cost"] - report["cost"]
    padding = report.get("padding_rows")
    return (0.0, 0.0) if padding is None else (report["rows"] + padding, padding)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker."""

    name: str
    state: str  # ``busy``, ``ready`` or ``silent``
    processes: int | None = None  # how many batches it can run at once
    tasks: int = 0  # how many batch tasks it serves
    waiting: int = 0  # requests that wait in it
    running: int = 0  # batches that run in it, or lie ready
    rows_per_second: float | None = None
    busy: float | None = None  # the share of the time in which its devices ran a model, 0 to 1
    devices: tuple[str, ...] = ()  # the devices of its models, as far as known


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One batch task, all workers together."""

    name: str
    queue: str = ""  # the broker queue of its messages
    workers: int = 0  # how many workers serve it
    max_batch_size: int | None = None  # the largest of all workers
    max_batch_cost: float | None = None  # the same in cost; None where cost is not limited
    messages: int | None = None  # in the broker; None where that is not known
    waiting: int = 0  # requests that wait in workers
    oldest: float | None = None  # seconds for which the oldest of these has waited in a worker
    running: int = 0  # batches that run, or lie ready
    rows_per_second: float | None = None
    batches_per_second: float | None = None
    batch_size: float | None = None  # mean rows of a batch
    #: Batches, by the upper bound of their size.
    batch_sizes: Mapping[int, int] = field(default_factory=dict)
    model_seconds: float | None = None  # mean seconds of a batch in the model
    wait_p50: float | None = None  # the 50th percentile of the requests' wait, in seconds
    wait_p95: float | None = None
    #: The share of what was computed that was padding, where that is counted.
    padding: float | None = None
    late: float | None = None  # the share of results that missed the latency target
    refused_per_second: float | None = None  # requests that would be late; None without a target
    #: ``paused``, ``drained`` or both where some worker does not run it; else empty.
    halted: str = ""


class ClusterState:
    """The state of all workers of an app."""

    def __init__(self, queues: Mapping[str, str], window: float) -> None:
        self._queues = dict(queues)
        self._window = window
        self._snapshots: deque[ClusterSnapshot] = deque()
        #: The last snapshot that each worker has answered.
        self._last: dict[str, ClusterSnapshot] = {}
        self.error = ""

    def add(self, snapshot: ClusterSnapshot) -> None:
        """Add a snapshot, and remove those that are too old."""
        now, self.error = snapshot.time, snapshot.error
        self._snapshots.append(snapshot)
        while len(self._snapshots) > 1 and now - self._snapshots[1].time >= self._window:
            self._snapshots.popleft()
        self._last.update(dict.fromkeys(snapshot.answers, snapshot))
        self._last = {
            name: last for name, last in self._last.items() if now - last.time <= _SILENCE
        }

    @property
    def seconds(self) -> float:
        """The seconds from the first snapshot to the last."""
        return self._snapshots[-1].time - self._snapshots[0].time if self._snapshots else 0.0

    def workers(self) -> list[WorkerView]:
        """Return all workers, silent ones too."""
        return [self._worker(name) for name in sorted(self._last)]

    def tasks(self) -> list[TaskView]:
        """Return all batch tasks: the app's own, and others that workers serve."""
        served = {task for name in self._last for task in self._reports(name)}
        return [self._task(name) for name in sorted({*self._queues, *served})]

    def _worker(self, name: str) -> WorkerView:
        last, reports = self._last[name], self._reports(name)
        running = sum(report.get("running", 0) for report in reports.values())
        answer, spans = last.answers[name], self._spans(name)
        state = "busy" if running else "ready"
        return WorkerView(
            name=name,
            state=state if last is self._snapshots[-1] else "silent",
            processes=answer.get("processes"),
            tasks=len(reports),
            waiting=sum(report.get("waiting", 0) for report in reports.values()),
            running=running,
            rows_per_second=_rate([(growth.rows, seconds) for _, growth, seconds in spans]),
            busy=self._busy(name),
            devices=tuple(answer.get("devices") or ()),
        )

    def _task(self, task: str) -> TaskView:
        reports = [found for name in self._last if (found := self._reports(name).get(task))]
        spans = [span for name in self._last for span in self._spans(name) if span[0] == task]
        total = Growth()
        for _, growth, _ in spans:
            total.add(growth)
        queue, waits = self._queues.get(task, ""), Histogram.of(total.waits)
        has_target = any("latency" in each for each in reports)
        refused = [(each.targets["refused"], seconds) for _, each, seconds in spans if has_target]
        waiting = sum(each.get("waiting", 0) for each in reports)
        return TaskView(
            name=task,
            queue=queue,
            workers=len(reports),
            max_batch_size=max((each.get("max_batch_size", 0) for each in reports), default=None),
            max_batch_cost=max(
                (each["max_batch_cost"] for each in reports if "max_batch_cost" in each),
                default=None,
            ),
            messages=self._snapshots[-1].depths.get(queue) if self._snapshots else None,
            waiting=waiting,
            oldest=max(each.get("oldest_age", 0.0) for each in reports) if waiting else None,
            running=sum(each.get("running", 0) for each in reports),
            rows_per_second=_rate([(growth.rows, seconds) for _, growth, seconds in spans]),
            batches_per_second=_rate([(growth.batches, seconds) for _, growth, seconds in spans]),
            batch_size=total.rows / total.batches if total.batches else None,
            batch_sizes=dict(sorted((+total.sizes).items())),
            model_seconds=total.model / total.ended if total.ended else None,
            wait_p50=waits.quantile(0.5),
            wait_p95=waits.quantile(0.95),
            padding=total.padding / total.computed if total.computed else None,
            late=total.late,
            refused_per_second=_rate(refused),
            halted=_halted(reports),
        )

    def _reports(self, name: str) -> Mapping[str, Mapping[str, Any]]:
        return reports_of(self._last[name].answers[name])

    def _spans(self, name: str) -> Iterator[tuple[str, Growth, float]]:
        """Yield the growth of each task of a worker, and in how many seconds."""
        first, last = self._ends(name)
        if first is None or last is None:
            return
        began, ended = first.answers[name], last.answers[name]
        seconds, before = last.time - first.time, reports_of(began)
        if "seconds" in began and "seconds" in ended:  # by its clock: answers may come late
            seconds = ended["seconds"] - began["seconds"]
        if seconds <= 0.0:  # it was restarted, and counts from 0
            seconds, before = ended["seconds"], {}
        if seconds > 0.0:
            for task, report in reports_of(ended).items():
                yield task, grown(before.get(task, {}), report), seconds

    def _ends(self, name: str) -> tuple[ClusterSnapshot | None, ClusterSnapshot | None]:
        """Return the first and the last snapshot that a worker has answered."""
        answered = [snapshot for snapshot in self._snapshots if name in snapshot.answers]
        return (answered[0], answered[-1]) if len(answered) > 1 else (None, None)

    def _busy(self, name: str) -> float | None:
        first, last = self._ends(name)
        if first is None or last is None:
            return None
        before, after = first.answers[name], last.answers[name]
        idle, processes = after.get("device_idle_seconds"), after.get("processes") or 1
        passed = (after.get("seconds") or 0.0) - (before.get("seconds") or 0.0)
        if idle is None or passed <= 0.0:  # not known, or it was restarted
            return None
        share: float = (idle - before.get("device_idle_seconds", 0.0)) / (passed * processes)
        return min(max(1.0 - share, 0.0), 1.0)


def runs_batches(stats: Mapping[str, Any]) -> bool:
    """Return whether a worker, by its answer to ``stats``, runs celery_batch with batch tasks."""
    return "batches" in stats


def reports_of(answer: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the reports, in an answer to ``batch_stats``, of a worker's present and past tasks."""
    tasks = answer.get("tasks") or {}
    return {name: each for name, each in tasks.items() if each.get("served") or each.get("batches")}


def _rate(counts: list[tuple[int, float]]) -> float | None:
    """Return how many a second, of counts and the seconds in which they grew; None without any."""
    return sum(count / seconds for count, seconds in counts) if counts else None


def _halted(reports: list[Mapping[str, Any]]) -> str:
    # A drained worker reports all its tasks as paused, too.
    halted = (each for each in reports if each.get("paused") or each.get("drained"))
    return ", ".join(sorted({"drained" if each.get("drained") else "paused" for each in halted}))
