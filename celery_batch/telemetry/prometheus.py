"""
A worker's metrics as Prometheus metric families.

Nothing is counted here: each scrape converts what the meter has counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from celery_batch.batching.batch import Reason
from celery_batch.telemetry.histogram import Histogram
from celery_batch.telemetry.meter import Tally
from celery_batch.telemetry.report import End, RequestEnd

__all__ = ["families"]

#: Histograms and counters of a `Tally`: its attribute, the metric's name, the help text.
_HISTOGRAMS = (
    ("sizes", "batch_size", "Rows in a batch."),
    ("fill", "batch_fill_ratio", "Share of its room that a batch used, in rows or in cost."),
    ("wait", "wait_seconds", "Time from a request's arrival in the worker to the model call."),
    ("model", "model_seconds", "Time that a batch was in the model."),
)
_COUNTERS = (
    ("rows", "rows", "Rows in batches that have ended."),
    ("calls", "model_calls", "Model calls."),
    ("isolated", "isolated_items", "Items that made their batch fail."),
    ("split", "split_batches", "Batches that raised, and whose items all succeeded in parts."),
    ("out_of_memory", "out_of_memory", "Model calls that ran out of memory."),
    ("reuse.hits", "cache_hits", "Rows with a cached answer; of tasks with cache_ttl."),
    ("reuse.misses", "cache_misses", "Rows that ran; of tasks with cache_ttl."),
    (
        "reuse.duplicates",
        "duplicate_rows",
        "Rows that got the output of an equal one; of tasks with dedupe.",
    ),
    ("poison", "poison_items", "Requests that ended processes."),
)

#: Counters with a second label: its name, the help text and the counts.  Failures are there
#: from the start, as 0, so that the first one shows as an increase.
_BY_LABEL: dict[str, tuple[str, str, Callable[[Tally], Mapping[str, int]]]] = {
    "requests": (
        "outcome",
        f"Requests by outcome: {', '.join(RequestEnd)}. Those with again run again.",
        lambda tally: {**dict.fromkeys(RequestEnd, 0), **tally.outcomes},
    ),
    "batches": (
        "reason",
        f"Batches that have ended, by why they left: {', '.join(Reason)}.",
        lambda tally: tally.reasons,
    ),
    "batch_ends": (
        "end",
        f"Batches by how they ended: {', '.join(End)}.",
        lambda tally: {**dict.fromkeys(End, 0), **tally.ends},
    ),
}

#: Counters of a task queue, by their names in its report; absent where the task has no such option.
_TASK_QUEUE_COUNTERS = {
    "cost": "Cost of the rows that ran; of tasks with a cost.",
    "padded_cost": "Cost of the model calls, with their padding; of tasks with a cost.",
    "padding_rows": "Rows that filled calls up; of tasks with fixed sizes.",
}

#: How requests of a task with a latency target ended, by their names in its report.
_TARGET_OUTCOMES = ("in_time", "late", "refused")

#: Gauges of a task queue, by their names in its report.
_GAUGES = {
    "waiting": (
        "waiting_requests",
        "Requests that wait in this worker, those of paused tasks included.",
    ),
    "oldest_age": (
        "oldest_age_seconds",
        "Time that the oldest of them has waited here.",
    ),
    "paused": (
        "paused",
        "1 while the task does not run here, after batch_pause or batch_drain; else 0.",
    ),
    "drained": ("drained", "1 while the worker takes nothing, after batch_drain; else 0."),
    "running": ("running_batches", "Batches that run or are ready in the pool."),
    "max_batch_size": ("max_batch_size", "Current value of max_batch_size."),
    "safe_size": (
        "safe_size",
        "Most rows, or cost, that fit into memory; absent until a call runs out.",
    ),
    "max_batch_cost": (
        "max_batch_cost",
        "Current value of max_batch_cost; of tasks with that option.",
    ),
    "keys": (
        "waiting_keys",
        "Keys with requests that wait in this worker; of tasks with batch_by.",
    ),
    "target_latency": (
        "target_latency_seconds",
        "Current value of target_latency; of tasks with that option.",
    ),
}


def families(
    counted: Mapping[str, Tally],
    *,
    tasks: Mapping[str, Mapping[str, Any]],
    idle: float,
    processes: int,
    refused: int,
    depths: Mapping[str, int],
    labels: Mapping[str, str],
) -> Iterator[Metric]:
    """Yield a worker's metrics; the counts, by task, do not change meanwhile."""
    tallies = {name: counted.get(name) or Tally() for name in tasks}
    for attribute, name, text in _HISTOGRAMS:
        histograms = dict(zip(tallies, map(attrgetter(attribute), tallies.values()), strict=True))
        yield _histogram(name, text, histograms)
    for attribute, name, text in _COUNTERS:
        found = attrgetter(attribute)
        yield _counter(name, text, {(task,): found(tally) for task, tally in tallies.items()})
    for name, (label, text, counts) in _BY_LABEL.items():
        numbers = {
            (task, str(value)): count
            for task, tally in tallies.items()
            for value, count in sorted(counts(tally).items())
        }
        yield _counter(name, text, numbers, "task", label)
    for key, (name, text) in _GAUGES.items():
        yield _gauge(name, text, _reported(tasks, key))
    for name, text in _TASK_QUEUE_COUNTERS.items():
        yield _counter(name, text, _reported(tasks, name))
    yield from _target_metrics(tasks)
    yield from _worker_metrics(idle, processes, refused)
    yield _gauge(
        "queue_depth",
        "Messages that wait in the broker (Redis, RabbitMQ); all workers report the same.",
        {(queue,): depth for queue, depth in depths.items()},
        "queue",
    )
    text = "The worker and its release; always 1."
    yield _gauge("worker_info", text, {tuple(labels.values()): 1}, *labels)


#: Numbers by the values of their labels.
_Numbers = Mapping[Any, float]


def _histogram(name: str, text: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"celery_batch_{name}", text, labels=["task"])
    for task, histogram in histograms.items():
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([task], list(zip(bounds, counts, strict=True)), histogram.sum)
    return family


def _family(kind: Any, name: str, text: str, numbers: _Numbers, *labels: str) -> Metric:
    family = kind(f"celery_batch_{name}", text, labels=labels or ["task"])
    for values, number in numbers.items():
        family.add_metric(values, float(number))
    return family  # type: ignore[no-any-return]


_counter, _gauge = partial(_family, CounterMetricFamily), partial(_family, GaugeMetricFamily)


def _reported(tasks: Mapping[str, Mapping[str, Any]], key: str) -> _Numbers:
    return {(task,): state[key] for task, state in tasks.items() if state.get(key) is not None}


def _target_metrics(tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    chosen = {task: state["latency"] for task, state in tasks.items() if "latency" in state}
    yield _counter(
        "target_requests",
        f"Requests of tasks with a latency target: {', '.join(_TARGET_OUTCOMES)}.",
        {
            (task, each): latency[each]
            for task, latency in chosen.items()
            for each in _TARGET_OUTCOMES
        },
        "task",
        "outcome",
    )
    text = "Most rows, or cost, of the next batch, as chosen for target_latency."
    yield _gauge("chosen_limit", text, {(task,): each["limit"] for task, each in chosen.items()})


def _worker_metrics(idle: float, processes: int, refused: int) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "celery_batch_device_idle_seconds",
        "Time in which pool processes ran no model, of all processes together.",
        value=idle,
    )
    yield GaugeMetricFamily(
        "celery_batch_processes", "Pool processes, each with its models.", value=processes
    )
    yield CounterMetricFamily(
        "celery_batch_refused_messages",
        "Messages that were refused: malformed, too large or forged.",
        value=refused,
    )
