"""Sending without Celery's own subscription to the result, which is told elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["unsubscribed"]

_is_told: ContextVar[bool] = ContextVar("celery_batch_is_told", default=False)


@contextmanager
def unsubscribed(app: Any) -> Iterator[None]:
    """
    Keep the app's backend from subscribing to what this thread or coroutine sends meanwhile.

    Celery's flag for it would hold for all threads, and keep them from waiting.

    Args:
        app: The Celery app.
    """
    backend = app.backend
    if "on_task_call" not in vars(backend):
        own = backend.on_task_call

        def on_task_call(producer: Any, task_id: str) -> None:
            if not _is_told.get():
                own(producer, task_id)

        backend.on_task_call = on_task_call
    token = _is_told.set(True)
    try:
        yield
    finally:
        _is_told.reset(token)
