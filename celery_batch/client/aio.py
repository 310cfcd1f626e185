"""Calls from coroutines, written together and beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from celery_batch.client.outgoing import first_look, send_soon

__all__ = ["apply_async"]


async def apply_async(
    task: Any,
    args: Any,
    kwargs: Any,
    options: dict[str, Any],
    *,
    on_abandoned: Callable[[Any], object] | None = None,
) -> Any:
    """
    Send a call and return its result when the broker has it.

    Args:
        task: The task that is called.
        args: Positional arguments, or None.
        kwargs: Keyword arguments, or None.
        options: As for `apply_async`.
        on_abandoned: Called with the result of a call that was cancelled while it was sent.
            One that is cancelled before is not sent.

    Raises:
        QueueFull: There is no room for it; said at once, and not after other calls' writes.
    """
    await first_look(task, options)
    parent = task.app.current_worker_task
    if parent:  # known to this thread alone
        request = parent.request
        options = {"root_id": request.root_id or request.id, "parent_id": request.id, **options}
        if task.app.conf.task_inherit_parent_priority and request.delivery_info:
            options.setdefault("priority", request.delivery_info.get("priority"))
    future = asyncio.get_running_loop().create_future()
    with send_soon((task, args, kwargs, options), future, _note, on_abandoned):
        try:
            result = await future
        except asyncio.CancelledError:
            # It may come in the same pass of the loop as the result.
            if on_abandoned and future.done() and not (future.cancelled() or future.exception()):
                on_abandoned(future.result())
            raise
    if parent and options.get("add_to_parent", True):
        parent.add_trail(result)
    return result


def _note(future: asyncio.Future[Any], result: Any) -> None:
    future.set_result(result)
