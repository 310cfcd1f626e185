"""What a task queue reports of itself: the policy and the counts as plain data."""

from __future__ import annotations

from math import inf
from typing import Any

from celery_batch.batching.policy import BatchPolicy
from celery_batch.telemetry.meter import Tally
from celery_batch.telemetry.report import Reuse
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["queue_report"]


def queue_report(queue: TaskQueue, tally: Tally) -> dict[str, Any]:
    """Return the policy and the counts of a task queue; times in seconds."""
    policy = queue.policy
    return (
        ({} if queue.keys is None else {"keys": queue.keys})
        | _cost_report(queue, policy, tally)
        | _reuse_report(queue.task, tally.reuse)
        | _shape_report(policy, tally)
        | _collate_report(queue)
        | ({} if queue.target is None else queue.target.report())
        | {
            "max_batch_size": policy.max_batch_size,
            "max_wait": policy.max_wait,
            "linger": policy.linger_seconds,
            "low_priority_share": policy.low_priority_share,
            "device_share": policy.device_share,
            "waiting": queue.waiting,
            "batches": queue.reasons.total(),
            "requests": queue.requests,
            "rows": queue.rows,
            "reasons": dict(queue.reasons),
            "sizes": {str(size): [*counts] for size, counts in sorted(queue.sizes.items())},
            "model_calls": tally.calls,
            "safe_size": queue.safe_size,
            "worker_losses": tally.losses,
            "oldest_age": round(queue.oldest_age, 6),
        }
    )


def _cost_report(queue: TaskQueue, policy: BatchPolicy, tally: Tally) -> dict[str, Any]:
    if policy.max_batch_cost is None:
        return {}
    return {
        "max_batch_cost": policy.max_batch_cost,
        "padded": policy.padded,
        "sort_window": policy.sort_window,
        "call_cost": round(queue.call_cost.value, 3) if queue.call_cost.value < inf else None,
        "cost": tally.cost,
        "padded_cost": tally.padded_cost,
    }


def _reuse_report(task: Any, reuse: Reuse) -> dict[str, Any]:
    has_cache = task.cache_ttl is not None  # also while an operator has turned it off
    cache = {"cache_hits": reuse.hits, "cache_misses": reuse.misses} if has_cache else {}
    return cache | ({"duplicates": reuse.duplicates} if has_cache or task.dedupe else {})


def _shape_report(policy: BatchPolicy, tally: Tally) -> dict[str, Any]:
    if not policy.batch_sizes:
        return {}
    lengths = {"batch_lengths": [*policy.batch_lengths]} if policy.batch_lengths else {}
    return {"batch_sizes": [*policy.batch_sizes], "padding_rows": tally.padding_rows} | lengths


def _collate_report(queue: TaskQueue) -> dict[str, Any]:
    seconds = queue.usual_collating
    return {"collate_seconds": round(seconds, 6)} if seconds else {}
