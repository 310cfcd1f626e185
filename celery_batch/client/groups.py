"""A group's calls in one write."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import wraps
from importlib import import_module
from typing import Any

from celery import group

from celery_batch.client.gathering import gathering

__all__ = ["gather_groups"]

#: How Celery's own method begins, which is all that we rely on.
_KNOWN = ["self", "tasks", "producer", "app"]


def gather_groups() -> None:
    """
    Have every group of this process write its batch tasks at once.

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
        tasks, passage = import_module("celery_batch.client.together").let_in(app, tasks)
        if passage is None:
            return send(self, tasks, producer, app, *more, **options)
        with passage:
            return iter(list(send(self, tasks, producer, app, *more, **options)))

    def send(
        self: Any, tasks: Any, producer: Any, app: Any, *more: Any, **options: Any
    ) -> Iterator[Any]:
        if producer is not None or not app.conf.get("batch_bulk", True):
            return own(self, tasks, producer, app, *more, **options)  # type: ignore[no-any-return]
        foreseen = import_module("celery_batch.client.answers").foreseen
        with gathering(app) as gathered:
            tasks = foreseen(app, tasks, gathered.frozen)
            results = list(own(self, tasks, None, app, *more, **options))
        return iter(results)

    _apply_tasks.gathers = True  # type: ignore[attr-defined]
    group._apply_tasks = _apply_tasks  # noqa: SLF001
