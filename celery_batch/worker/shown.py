"""A worker's numbers in words, one line for each task: what Flower's worker page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_batch.amounts import figure

__all__ = ["in_words"]


def in_words(stats: Mapping[str, Any]) -> dict[str, str]:
    """
    Return lines for people, under names for people.

    Args:
        stats: A worker's answer to ``batch_stats``.
    """
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
        return f"none yet, of up to {largest} rows"
    average = task["rows"] / batches
    now = f"now {task['waiting']:,} requests waiting, {task['running']:,} batches on their way"
    return (
        f"{batches:,}, of {average:.1f} rows on average and up to {largest};"
        f" wait {_spread(task['wait'])}; model {_spread(task['model'])}; {now}"
    )


def _spread(seconds: Mapping[str, float | None]) -> str:
    median, late = seconds["p50"], seconds["p95"]
    if median is None or late is None:
        return "unknown"
    return f"{figure(median)}, of 95 in 100 up to {figure(late)}"
