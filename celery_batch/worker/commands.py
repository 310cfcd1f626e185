"""
An operator's orders, as they come over Celery's remote control.

From a shell they are words, ``batch_config workers.infill max_wait=0.02``; programs give
them names, ``broadcast("batch_config", {"task": "workers.infill", "max_wait": 0.02})``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from celery.worker.control import control_command

from celery_batch.config import OPTIONS
from celery_batch.errors import BatchError, ConfigurationError
from celery_batch.worker.steering import DEFAULT

__all__ = ["register"]

_Order = Callable[..., dict[str, Any]]


def register() -> None:
    """Teach the orders to this worker, or to this command line."""
    control_command(
        variadic="words",
        signature="TASK [default] [max_batch_size=ROWS] [max_wait=SECONDS] [linger=SECONDS]",
    )(_answered(batch_config))


def _answered(order: _Order) -> _Order:
    """Answer as Celery's own commands do: with what is so now, or with what was wrong."""

    @wraps(order)
    def answer(state: Any, **arguments: Any) -> dict[str, Any]:
        try:
            return {"ok": order(state.consumer.batch_steering, **arguments)}
        except BatchError as error:
            return {"error": str(error)}

    return answer


def batch_config(
    steering: Any, words: Sequence[str] = (), task: str | None = None, **values: Any
) -> dict[str, Any]:
    """Show or change when a task's batches leave; "default" puts back what the task says."""
    named = {
        name: _value(value)
        for name, _, value in (word.partition("=") for word in words if "=" in word)
    }
    name, *rest = [*([task] if task else []), *(word for word in words if "=" not in word), ""]
    for word in rest[:-1]:
        if word != DEFAULT:
            raise ConfigurationError(f"{word}: not understood; {_USAGE}")
        named = {**dict.fromkeys(OPTIONS, DEFAULT), **named}
    if not name:
        raise ConfigurationError(f"no task is named; {_USAGE}")
    reply: dict[str, Any] = steering.configure(name, {**named, **values})
    return reply


_USAGE = "write: batch_config TASK max_batch_size=32 max_wait=0.02"


def _value(text: str) -> Any:
    """Return what a word stands for: a number, None, or itself."""
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
