"""Which workers have a warm handle, asked of the workers themselves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

__all__ = ["Readiness", "warm_workers"]

#: Seconds to listen: the first reply does not end it, since what others reply after that
#: would lie in the broker for ever.
_LISTEN = 1.0

#: Seconds for which an answer is good.
_FRESH = 1.0


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


class Readiness:
    """
    Whether requests can be served, asked at most once at a time.

    Args:
        app: The Celery app.
        task: The name of the task that has to be warm.
    """

    def __init__(self, app: Any, task: str) -> None:
        self._app = app
        self._task = task
        self._lock = asyncio.Lock()
        self._asked = float("-inf")
        self._reason = ""

    async def why_not(self) -> str:
        """Return why nothing can be served; the empty string if it can."""
        async with self._lock:
            if time.monotonic() - self._asked > _FRESH:
                self._reason = await asyncio.to_thread(self._ask)
                self._asked = time.monotonic()
            return self._reason

    def _ask(self) -> str:
        try:
            warm = warm_workers(self._app, self._task)
        except Exception as error:  # noqa: BLE001 (whatever it is, the answer is no)
            return f"the broker cannot be reached: {error}"
        return "" if warm else "no worker has its handle loaded"
