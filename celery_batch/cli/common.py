"""What several commands share: task names, durations, errors in one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from celery_batch.config import did_you_mean
from celery_batch.errors import ConfigurationError
from celery_batch.task import BatchTask

__all__ = [
    "batch_task",
    "duration",
    "errors_in_one_line",
]


def errors_in_one_line(command: click.Command) -> None:
    """
    Have a command that refuses wrong settings end as click ends with any error.

    Celery's own do so for a few errors of theirs; ours come up where tasks are bound, in
    the midst of whatever command asks for them first.

    Args:
        command: Ours, or one of Celery's.
    """
    callback: Callable[..., Any] = command.callback or (lambda: None)

    @wraps(callback)
    def told(*args: Any, **options: Any) -> Any:
        try:
            return callback(*args, **options)
        except ConfigurationError as error:
            raise click.ClickException(str(error)) from error

    command.callback = told


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


#: Seconds, of less than which parts are told.
_SHORT = 1


_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """
    Return a time in its two largest units, or part of a second.

    Args:
        seconds: How long.
    """
    whole = round(seconds)
    if 0 < seconds < _SHORT:
        return f"{seconds:.2g} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
