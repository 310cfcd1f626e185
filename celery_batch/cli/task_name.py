"""The batch task that a command is about."""

from __future__ import annotations

from typing import Any

from celery_batch.config import did_you_mean
from celery_batch.errors import ConfigurationError
from celery_batch.task import BatchTask

__all__ = ["batch_task"]


def batch_task(app: Any, name: str) -> BatchTask:
    """
    Find a batch task of an app.

    Args:
        app: The Celery app; its task modules are imported.
        name: The task's name.

    Raises:
        ConfigurationError: There is no such task, or it is none of ours.
    """
    app.loader.import_default_modules()
    app.finalize()
    known = sorted(each for each, task in app.tasks.items() if isinstance(task, BatchTask))
    if name in known:
        return app.tasks[name]  # type: ignore[no-any-return]
    names = ", ".join(known) or "none"
    if name in app.tasks:
        raise ConfigurationError(
            f"{name}: is an ordinary task, made without base=BatchTask; this app's batch tasks:"
            f" {names}"
        )
    raise ConfigurationError(
        f"{name}: is no batch task of this app; there are: {names}{did_you_mean(name, known)}"
    )
