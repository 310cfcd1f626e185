"""Collects facts of running workers, over remote control."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from celery_batch.checks.facts import TaskStats, Worker
from celery_batch.cluster.control_client import ControlClient
from celery_batch.cluster.snapshot import Growth, grown
from celery_batch.cluster.state import reports_of

__all__ = ["workers_of"]

#: Seconds in which workers answer.
_LISTEN = 2.0


def workers_of(app: Any, tasks: Collection[str]) -> tuple[Worker, ...]:
    """
    Ask all workers of an app; return those that have answered.

    Args:
        app: The Celery app.
        tasks: The names of its batch tasks.

    Raises:
        Exception: Whatever a transport raises when nobody can be asked.
    """
    control_client = ControlClient(app)
    try:
        stats = control_client.ask("stats", _LISTEN)
        # Workers that run no batch task may not know the second question.
        asks = any(map(_knows_batches, stats.values()))
        began = control_client.ask("batch_stats", _LISTEN) if asks else {}
        told = control_client.ask("batch_stats", _LISTEN) if asks else {}
        does_all = all(_served(told.get(name, {})) >= set(tasks) for name in stats)
        # Who serves all of them discards none.
        queues = {} if does_all else control_client.ask("active_queues", _LISTEN)
        known = {} if does_all else control_client.ask("registered", _LISTEN)
    finally:
        control_client.close()
    return tuple(
        replace(
            _worker(name, stats[name], (began.get(name, {}), told.get(name, {}))),
            queues=_queues(queues.get(name)),
            knows=_names(known.get(name)),
        )
        for name in sorted(stats)
    )


def _served(answer: Mapping[str, Any]) -> set[str]:
    return {task for task, report in reports_of(answer).items() if report["served"]}


def _queues(answer: Any) -> frozenset[str] | None:
    """Return the names among what Celery says of queues, or None where it is no such answer."""
    return frozenset(each["name"] for each in answer) if isinstance(answer, list) else None


def _names(answer: Any) -> frozenset[str] | None:
    """Return tasks' names without what Celery says of each, as in ``shop.toy [rate_limit=1/s]``."""
    if not isinstance(answer, list):
        return None
    return frozenset(each.partition(" [")[0] for each in answer)


def _knows_batches(stats: Any) -> bool:
    return isinstance(stats, dict) and "batches" in stats


def _worker(
    name: str, stats: Mapping[str, Any], answers: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Worker:
    began, told = map(reports_of, answers)
    pool = stats.get("pool") or {}
    kind = str(pool.get("implementation", ""))
    per_child = pool.get("max-tasks-per-child")
    return Worker(
        name=name,
        pool=kind.partition(":")[0],
        processes=pool.get("max-concurrency"),
        prefetch=stats.get("prefetch_count"),
        max_tasks_per_child=per_child if isinstance(per_child, int) else None,
        devices=tuple(answers[1].get("devices") or ()),
        version=str(stats.get("celery_batch", "")),
        task_stats={
            task: _task_queue(report, grown(began.get(task, report), report))
            for task, report in told.items()
            if report["served"]
        },
        has_told="tasks" in answers[1] or not _knows_batches(stats),
        error=str(stats.get("error") or answers[1].get("error") or ""),
    )


def _task_queue(report: Mapping[str, Any], lately: Growth) -> TaskStats:
    return TaskStats(
        max_batch_size=report["max_batch_size"],
        max_wait=report["max_wait"],
        batches=lately.batches,
        rows=lately.rows,
        waiting=report.get("waiting", 0),
        safe_size=report.get("safe_size"),
        losses=report.get("worker_losses", 0),
        routed=report.get("routed", True),
        steered=bool(report.get("task_says")),
        halted=bool(report.get("paused") or report.get("drained")),
        model=(report.get("model") or {}).get("p99"),
    )
