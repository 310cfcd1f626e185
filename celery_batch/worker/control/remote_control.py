"""Remote control commands that inspect a running worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.worker.control import Panel, inspect_command
from celery.worker.state import revoked
from kombu.utils.functional import maybe_list

from celery_batch.protocol import QUIETLY
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.control import commands
from celery_batch.worker.metrics.snapshot import stats_of

__all__ = ["register"]


def register() -> None:
    """Teach this worker our commands; Celery looks them up when a question comes."""
    if "batch_status" not in Panel.data:
        inspect_command()(batch_status)
        inspect_command()(batch_stats)
        commands.register()
        Panel.data["revoke"] = _quietly_if_told(Panel.data["revoke"])


def batch_status(state: Any, **_: Any) -> dict[str, Any]:
    """Batch tasks served here, whether their models are warm, and how their batches formed."""
    context = ConsumerContext.of(state.consumer)
    reports = context.scheduler.report()
    return {
        task.name: {
            "warm": context.runtime_config.is_warm(task.name),
            **reports.get(task.name, {}),
            **context.runtime_config.report(task.name),
        }
        for task in context.worker.tasks
    }


def batch_stats(state: Any, **_: Any) -> dict[str, Any]:
    """What the batches of this worker came to: sizes, waits, model times, outcomes."""
    return stats_of(state.consumer)


def _quietly_if_told(own: Callable[..., Any]) -> Callable[..., Any]:
    """Spare Celery's command two round trips for each of many tasks that nobody waits for."""

    @wraps(own)
    def revoke(state: Any, task_id: Any, *args: Any, **options: Any) -> Any:
        if not options.pop(QUIETLY, False):
            return own(state, task_id, *args, **options)
        task_ids = maybe_list(task_id) or []
        revoked.update(task_ids)
        return {"ok": f"{len(task_ids)} tasks will be left out"}

    return revoke
