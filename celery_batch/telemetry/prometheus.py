"""

A worker's metrics as Prometheus metric families.

Nothing is counted here. When somebody looks, what the meter has counted is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from celery_batch.telemetry.histogram import Histogram
from celery_batch.telemetry.report import End, Outcome
from celery_batch.telemetry.tally import Tally

__all__ = ["Surroundings", "families"]

_HISTOGRAMS: dict[str, tuple[str, Callable[[Tally], Histogram]]] = {
    "batch_size": ("Rows of a batch.", lambda tally: tally.sizes),
    "batch_fill_ratio": ("Share of max_batch_size that a batch used.", lambda tally: tally.fill),
    "wait_seconds": (
        "Time from a request's arrival in the worker to the call of the model.",
        lambda tally: tally.wait,
    ),
    "model_seconds": ("Time a batch was in the model.", lambda tally: tally.model),
}

_COUNTERS: dict[str, tuple[str, Callable[[Tally], int]]] = {
    "rows": ("Rows that were in batches.", lambda tally: tally.rows),
    "model_calls": ("Calls of the model.", lambda tally: tally.calls),
    "isolated_items": (
        "Items that were found to make their batch fail.",
        lambda tally: tally.isolated,
    ),
    "out_of_memory": (
        "Calls of the model for which memory did not suffice.",
        lambda tally: tally.out_of_memory,
    ),
    "poison_items": ("Requests that took processes down.", lambda tally: tally.poison),
}

#: Counts by a label: its name, what is counted, and how often each was.  What may go wrong is
#: there from the start, as nought, so that its first time is seen as an increase.
_BY_LABEL: dict[str, tuple[str, str, Callable[[Tally], Mapping[str, int]]]] = {
    "requests": (
        "outcome",
        "Requests, by what became of them.",
        lambda tally: {**dict.fromkeys(Outcome, 0), **tally.outcomes},
    ),
    "batches": ("reason", "Batches, by why they left.", lambda tally: tally.reasons),
    "batch_ends": (
        "end",
        "Batches, by how they ended.",
        lambda tally: {**dict.fromkeys(End, 0), **tally.ends},
    ),
}

#: Of a task's lane, by their names in its report.
_GAUGES = {
    "waiting": ("waiting_requests", "Requests that wait in this worker, in line or paused."),
    "oldest_age": ("oldest_age_seconds", "For how long the oldest of these has waited here."),
    "paused": ("paused", "1 while the task does not run here, by batch_pause or batch_drain."),
    "drained": ("drained", "1 while the worker takes nothing, by batch_drain."),
    "running": ("running_batches", "Batches on their way through the pool."),
    "max_batch_size": ("max_batch_size", "Most rows in a batch."),
    "safe_size": ("safe_size", "Most rows that fit into memory; missing while none ran out."),
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    What a worker knows beside its meter.

    Args:
        tasks: The numbers of its batch tasks' lanes, by task.
        idle: Seconds for which its processes had no batch in their models.
        processes: How many pool processes it has.
        refused: Messages that were refused.
        depths: How many messages wait in the broker, by queue, as far as is known.
        labels: What is to be told of the worker itself.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    idle: float
    processes: int
    refused: int = 0
    depths: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def families(counted: Mapping[str, Tally], around: Surroundings) -> Iterator[Metric]:
    """
    Write down what a worker has counted, by task, and what surrounds it.

    Args:
        counted: What nobody adds to meanwhile.
        around: All else, and the tasks that are told of.
    """
    tallies = {name: counted.get(name) or Tally() for name in around.tasks}
    for name, (text, of) in _HISTOGRAMS.items():
        yield _histogram(name, text, {task: of(tally) for task, tally in tallies.items()})
    for name, (text, number) in _COUNTERS.items():
        counter = CounterMetricFamily(f"celery_batch_{name}", text, labels=["task"])
        for task, tally in tallies.items():
            counter.add_metric([task], number(tally))
        yield counter
    for name, (label, text, counts) in _BY_LABEL.items():
        counter = CounterMetricFamily(f"celery_batch_{name}", text, labels=["task", label])
        for task, tally in tallies.items():
            for what, count in sorted(counts(tally).items()):
                counter.add_metric([task, str(what)], count)
        yield counter
    yield from _of_task_queues(around.tasks)
    yield from _of_worker(around)


def _histogram(name: str, text: str, of_tasks: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"celery_batch_{name}", text, labels=["task"])
    for task, histogram in of_tasks.items():
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([task], list(zip(bounds, counts, strict=True)), histogram.sum)
    return family


def _of_task_queues(tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for key, (name, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"celery_batch_{name}", text, labels=["task"])
        for task, numbers in tasks.items():
            if numbers.get(key) is not None:
                gauge.add_metric([task], float(numbers[key]))
        yield gauge


def _of_worker(around: Surroundings) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "celery_batch_device_idle_seconds",
        "Time in which no batch was in the model, of all pool processes together.",
        value=around.idle,
    )
    yield GaugeMetricFamily(
        "celery_batch_processes", "Pool processes, each with its models.", value=around.processes
    )
    yield CounterMetricFamily(
        "celery_batch_refused_messages",
        "Messages that were refused: malformed, too large or forged.",
        value=around.refused,
    )
    depths = GaugeMetricFamily(
        "celery_batch_queue_depth", "Messages that wait in the broker.", labels=["queue"]
    )
    for queue, depth in around.depths.items():
        depths.add_metric([queue], depth)
    yield depths
    info = GaugeMetricFamily(
        "celery_batch_worker_info", "The worker itself: always 1.", labels=list(around.labels)
    )
    info.add_metric(list(around.labels.values()), 1)
    yield info
