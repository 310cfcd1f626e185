"""What the workers that are up say of themselves, over Celery's control bus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_batch.doctor.facts import Lane, Worker

__all__ = ["workers_of"]

#: Seconds in which workers answer.
_LISTEN = 1.5


def workers_of(app: Any) -> tuple[Worker, ...] | None:
    """
    Ask all workers of an app.

    Args:
        app: The Celery app.

    Returns:
        Those that have answered; None if the broker could not be reached.
    """
    inspect = app.control.inspect(timeout=_LISTEN)
    try:
        stats = inspect.stats() or {}
        lanes = inspect._request("batch_status") or {}  # noqa: SLF001 (as celery inspect asks)
    except Exception:  # noqa: BLE001 (whatever a transport raises)
        return None
    return tuple(_worker(name, stats[name], lanes.get(name)) for name in sorted(stats))


def _worker(name: str, stats: Mapping[str, Any], lanes: Any) -> Worker:
    pool = stats.get("pool") or {}
    kind = str(pool.get("implementation", ""))
    per_child = pool.get("max-tasks-per-child")
    return Worker(
        name=name,
        pool=kind.partition(":")[0],
        processes=pool.get("max-concurrency"),
        max_tasks_per_child=per_child if isinstance(per_child, int) else None,
        version=str(stats.get("celery_batch", "")),
        lanes={
            task: _lane(lane)
            for task, lane in (lanes.items() if isinstance(lanes, dict) else ())
            if isinstance(lane, dict) and "max_batch_size" in lane
        },
    )


def _lane(lane: Mapping[str, Any]) -> Lane:
    return Lane(
        max_batch_size=lane["max_batch_size"],
        max_wait=lane["max_wait"],
        batches=lane.get("batches", 0),
        rows=lane.get("rows", 0),
        waiting=lane.get("waiting", 0),
        safe_size=lane.get("safe_size"),
        losses=lane.get("worker_losses", 0),
        steered=bool(lane.get("task_says")),
        halted=bool(lane.get("paused") or lane.get("drained")),
    )
