"""Which workers have loaded their handle."""

from __future__ import annotations

from typing import Any

__all__ = ["warm_workers"]

#: Seconds to listen: the first reply does not end it, since later replies of other workers
#: would stay in the broker for ever.
_LISTEN = 1.0


def warm_workers(app: Any, task: str) -> set[str]:
    """
    Ask all workers of an app, for a second, which of them take a task and have loaded its model.

    Args:
        app: The Celery app.
        task: The task's name.

    Returns:
        The workers' names.

    Raises:
        OperationalError: The broker cannot be reached.
    """
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
        replies = app.control.broadcast(
            "batch_status", reply=True, timeout=_LISTEN, connection=connection
        )
    return {
        name
        for reply in replies or ()
        for name, tasks in reply.items()
        if isinstance(tasks, dict)
        and (state := tasks.get(task))
        and state.get("warm")
        and not state.get("paused")
    }
