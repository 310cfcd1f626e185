"""Wrong settings as one line for whoever types a command, and not as a trace of calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from celery_batch.errors import ConfigurationError

__all__ = ["told_plainly"]


def told_plainly(command: click.Command) -> None:
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
