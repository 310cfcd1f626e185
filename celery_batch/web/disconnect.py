"""Cancellation of a request's work when its client disconnects, for any ASGI framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from celery_batch.errors import BatchError

__all__ = ["ClientDisconnected", "until_disconnect"]

T = TypeVar("T")

#: Seconds after which a client is watched.  Most answers are there by then, and to watch takes a
#: task of asyncio's.
_WATCH_AFTER = 0.2

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientDisconnected(BatchError):
    """The client has disconnected before its answer was ready."""

    status_code = 499  # as nginx logs it; no client reads it


async def until_disconnect(receive: Receive, answer: Awaitable[T]) -> T:
    """
    Await a request's answer, and cancel it when the client disconnects.

    Read the request's body first: what the client still sends is dropped.  A client is watched
    from 0.2 s on: one that has disconnected before is noticed then.

    Args:
        receive: The ASGI callable, ``request.receive`` in Starlette and FastAPI.
        answer: The coroutine; it runs in the calling task.

    Returns:
        What the coroutine returns.

    Raises:
        ClientDisconnected: The client has gone, and the coroutine was cancelled.
        Exception: Whatever the coroutine raises.
    """
    scope = asyncio.timeout(None)
    watch: asyncio.Task[None] | None = None

    def begin() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(_expire_on_disconnect(receive, scope))

    try:
        async with scope:
            timer = asyncio.get_running_loop().call_later(_WATCH_AFTER, begin)
            try:
                return await answer
            finally:
                timer.cancel()
                if watch:
                    watch.cancel()
    except TimeoutError as error:
        if scope.expired():
            raise ClientDisconnected from error
        raise


async def _expire_on_disconnect(receive: Receive, scope: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.reschedule(0.0)
