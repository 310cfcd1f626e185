"""Whether a worker has a warm handle, and which of them."""

from __future__ import annotations

from typing import Any

from kombu.exceptions import OperationalError

__all__ = ["warm_workers", "why_not_ready"]

#: Seconds to listen: the first reply does not end it, since what others reply after that
#: would lie in the broker for ever.
_LISTEN = 1.0


def warm_workers(app: Any, task: str) -> set[str]:
    """
    Ask all workers of an app, for a second, which of them take a task, its model loaded.

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
        if isinstance(tasks, dict) and _is_ready(tasks.get(task) or {})
    }


def _is_ready(state: dict[str, Any]) -> bool:
    return bool(state.get("warm")) and not state.get("paused")


async def why_not_ready(task: Any) -> str:
    """
    Return why no request can be answered; the empty string if one can.

    Args:
        task: The task that answers requests.
    """
    try:
        is_served = await task.ais_served()
    except OperationalError as error:
        return f"the broker cannot be reached: {error}"
    return "" if is_served else "no worker has its handle loaded"
