"""The calls of a group in few writes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import wraps
from importlib import import_module
from typing import Any

from celery import group

__all__ = ["gather_groups"]

#: How Celery's own method begins, which is all that we rely on.
_KNOWN = ["self", "tasks", "producer", "app"]


def gather_groups() -> None:
    """
    Have every group of this process write its batch tasks together.

    What it sends otherwise goes as ever, and so does all of it where Celery's method
    is not the one that we know.
    """
    own = group._apply_tasks  # noqa: SLF001
    if getattr(own, "gathers", False) or list(inspect.signature(own).parameters)[:4] != _KNOWN:
        return

    @wraps(own)
    def _apply_tasks(
        self: Any, tasks: Any, producer: Any = None, app: Any = None, *more: Any, **options: Any
    ) -> Iterator[Any]:
        app = app or self.app

        def apply(tasks: Any, producer: Any) -> Iterator[Any]:
            return own(self, tasks, producer, app, *more, **options)  # type: ignore[no-any-return]

        together = import_module("celery_batch.client.publish.bulk")
        return together.send_group(app, tasks, producer, apply)  # type: ignore[no-any-return]

    _apply_tasks.gathers = True  # type: ignore[attr-defined]
    group._apply_tasks = _apply_tasks  # noqa: SLF001
