"""What a task queue reports of itself: the policy and the counts as plain data."""

from __future__ import annotations

from math import inf
from typing import Any

from celery_batch.telemetry.meter import Tally
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["queue_report"]


def queue_report(queue: TaskQueue, tally: Tally) -> dict[str, Any]:
    """Return the policy and the counts of a task queue; times in seconds."""
    policy = queue.policy
    report = _options_report(queue, tally) | {
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
    if queue.usual_collating:
        report["collate_seconds"] = round(queue.usual_collating, 6)
    if queue.target is not None:
        report |= queue.target.report()
    return report


def _options_report(queue: TaskQueue, tally: Tally) -> dict[str, Any]:
    """Return what there is only with certain options of the task."""
    policy, task, reuse = queue.policy, queue.task, tally.reuse
    report: dict[str, Any] = {}
    if queue.keys is not None:
        report["keys"] = queue.keys
    if policy.max_batch_cost is not None:
        call_cost = queue.call_cost.value
        report["max_batch_cost"] = policy.max_batch_cost
        report["padded"] = policy.padded
        report["sort_window"] = policy.sort_window
        report["call_cost"] = round(call_cost, 3) if call_cost < inf else None
        report["cost"] = tally.cost
        report["padded_cost"] = tally.padded_cost
    has_cache = task.cache_ttl is not None  # also while an operator has turned it off
    if has_cache:
        report |= {"cache_hits": reuse.hits, "cache_misses": reuse.misses}
    if has_cache or task.dedupe:
        report["duplicates"] = reuse.duplicates
    if policy.batch_sizes:
        report |= {"batch_sizes": [*policy.batch_sizes], "padding_rows": tally.padding_rows}
    if policy.batch_lengths:
        report["batch_lengths"] = [*policy.batch_lengths]
    return report
