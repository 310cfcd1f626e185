"""The calls of a group in few writes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import wraps
from importlib import import_module
from typing import Any

from celery import group

__all__ = ["send_groups_in_bulk"]

#: The first parameters of Celery's own method, which are all that we rely on.
_KNOWN = ["self", "tasks", "producer", "app"]


def send_groups_in_bulk() -> None:
    """
    Have every group of this process write its batch tasks together.

    Its other tasks are sent as in Celery, and so are all where Celery's method is not the one
    that we know.
    """
    own = group._apply_tasks  # noqa: SLF001
    if getattr(own, "is_ours", False) or list(inspect.signature(own).parameters)[:4] != _KNOWN:
        return

    @wraps(own)
    def _apply_tasks(
        self: Any, tasks: Any, producer: Any = None, app: Any = None, *more: Any, **options: Any
    ) -> Iterator[Any]:
        app = app or self.app

        def apply(tasks: Any, producer: Any) -> Iterator[Any]:
            return own(self, tasks, producer, app, *more, **options)  # type: ignore[no-any-return]

        send_many = import_module("celery_batch.client.publish.send_many")
        return send_many.send_group(app, tasks, producer, apply)  # type: ignore[no-any-return]

    _apply_tasks.is_ours = True  # type: ignore[attr-defined]
    group._apply_tasks = _apply_tasks  # noqa: SLF001
