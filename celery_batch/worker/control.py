"""What an operator may ask a running worker."""

from __future__ import annotations

from typing import Any

from celery.worker.control import Panel, inspect_command

__all__ = ["register"]


def register() -> None:
    """Teach this worker our commands; Celery looks them up when a question comes."""
    if "batch_status" not in Panel.data:
        inspect_command()(batch_status)


def batch_status(state: Any, **_: Any) -> dict[str, Any]:
    """Batch tasks served here, with their models warm, and how their batches formed."""
    served = [task.name for task in getattr(state.consumer.controller, "batch_tasks", [])]
    lanes = state.consumer.batch_lanes.report()
    return {name: {"warm": True, **lanes.get(name, {})} for name in served}
