"""How commands report errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from celery_batch.errors import BatchError

__all__ = ["INTERRUPTED", "errors_in_one_line"]

#: A shell's exit code after Ctrl-C.
INTERRUPTED = 130


def errors_in_one_line(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command, ours or Celery's, report our errors as click reports its own."""

    @wraps(callback)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return callback(*args, **options)
        except BatchError as error:
            raise click.ClickException(str(error)) from error

    return wrapped
