"""A worker's statistics as plain data, and as text for Flower."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from celery_batch.config import Settings
from celery_batch.formatting import figure
from celery_batch.runtime.devices import discover
from celery_batch.worker.consumer_context import ConsumerContext

__all__ = [
    "in_words",
    "stats_of",
    "task_reports",
]


def task_reports(context: ConsumerContext) -> dict[str, dict[str, Any]]:
    """Return the state of each batch task that a worker serves or has served, by name."""
    scheduler, config = context.scheduler, context.runtime_config
    served = {task.name for task in context.worker.tasks}
    reports = scheduler.report()
    return {
        name: {
            "served": name in served,
            "routed": name in context.worker.routed,
            "oldest_age": 0.0,
            **reports.get(name, {}),
            **config.report(name),
        }
        for name in sorted({*served, *reports})
    }


def stats_of(consumer: Any) -> dict[str, Any]:
    """Return a worker's statistics; times in seconds, None for a number that is not known yet."""
    context = ConsumerContext.of(consumer)
    scheduler, now = context.scheduler, time.monotonic()
    idle = scheduler.recorder.idle_seconds(scheduler.slots)
    reports, processes = task_reports(context), scheduler.slots.model_processes
    with scheduler.recorder.counts() as meter:
        seconds = now - meter.since
        summaries = {name: meter.tally(name).summary() for name in reports}
    return {
        "seconds": round(seconds, 3),
        "processes": processes,
        "refused_messages": context.validator.refusals.count,
        "metrics": context.worker.metrics_url,
        "devices": _devices(consumer, processes),
        "device_idle_seconds": round(idle, 3),
        "device_idle_share": round(min(idle / (seconds * processes), 1.0), 4) if seconds else None,
        "tasks": {name: {**report, **summaries[name]} for name, report in reports.items()},
    }


def _devices(consumer: Any, processes: int) -> list[str]:
    """Return the devices of the models, as `devices.pin` assigns them to processes."""
    names = Settings.of(consumer.app).devices or discover()
    return list(dict.fromkeys(names[index % len(names)] for index in range(processes)))


def in_words(stats: Mapping[str, Any]) -> dict[str, str]:
    """Return a worker's answer to ``batch_stats`` as text, under readable names."""
    lines = {
        f"batches of {name}": _task(task)
        for name, task in stats["tasks"].items()
        if task["served"] or task["batches"]
    }
    share = stats.get("device_idle_share")
    idle = "" if share is None else f", idle {share:.0%} of the time"
    return {"models on": f"{', '.join(stats['devices'])}{idle}", **lines}


def _task(task: Mapping[str, Any]) -> str:
    batches, largest = task["batches"], task["max_batch_size"]
    if not batches:
        return f"none yet, of up to {_counted(largest, 'row', 'rows')}"
    average = task["rows"] / batches
    waiting = _counted(task["waiting"], "request", "requests")
    now = f"now {waiting} waiting, {_counted(task['running'], 'batch', 'batches')} running"
    return (
        f"{batches:,}, of {average:.1f} rows on average and up to {largest};"
        f" wait {_spread(task['wait'])}; model {_spread(task['model'])}; {now}"
    )


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _spread(seconds: Mapping[str, float | None]) -> str:
    median, late = seconds["p50"], seconds["p95"]
    if median is None or late is None:
        return "unknown"
    return f"{figure(median)}, of 95 in 100 up to {figure(late)}"
