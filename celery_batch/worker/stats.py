"""What a worker's batches came to, as plain data for whoever asks."""

from __future__ import annotations

import time
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_batch.config import Settings
from celery_batch.serving.devices import discover

__all__ = ["stats_of"]


def stats_of(consumer: Any) -> dict[str, Any]:
    """
    Return a worker's numbers and, by name, those of each of its batch tasks.

    Args:
        consumer: Celery's consumer.

    Returns:
        All times are in seconds; what nobody can know yet is None.
    """
    lanes = consumer.batch_lanes
    now = time.monotonic()
    seconds, idle = lanes.watch.ask(lambda meter: now - meter.since), lanes.idle(now)
    processes = lanes.processes
    reports, ages = lanes.report(), lanes.ages(now)
    served = {task.name for task in getattr(consumer.controller, "batch_tasks", [])}
    routed = getattr(consumer.controller, "batch_routed", served)
    summaries = {name: _summary(lanes, name) for name in sorted({*served, *reports})}
    return {
        "seconds": round(seconds, 3),
        "processes": processes,
        "refused_messages": consumer.batch_gate.refused,
        "metrics": getattr(consumer.controller, "batch_metrics_url", None),
        "devices": _devices(consumer, processes),
        "device_idle_seconds": round(idle, 3),
        "device_idle_share": round(min(idle / (seconds * processes), 1.0), 4) if seconds else None,
        "tasks": {
            name: {
                "served": name in served,
                "routed": name in routed,
                **reports.get(name, {}),
                **consumer.batch_steering.report(name),
                "oldest_age": round(ages.get(name, 0.0), 6),
                **summary,
            }
            for name, summary in summaries.items()
        },
    }


def _devices(consumer: Any, processes: int) -> list[str]:
    """Return where the models live, as `devices.pin` gives places to processes."""
    names = Settings.of(consumer.app).devices or discover()
    count = processes if isinstance(consumer.pool, PreforkPool) else 1
    return list(dict.fromkeys(names[index % len(names)] for index in range(count)))


def _summary(lanes: Any, name: str) -> dict[str, Any]:
    return dict(lanes.watch.ask(lambda meter: meter.summary(name)))
