"""How a coroutine waits for a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_batch.client.elsewhere import is_of_thread
from celery_batch.client.listener import is_listening, listener_for
from celery_batch.client.loops import Doorbell

__all__ = ["PARENTS", "SELDOM", "SOON", "arrived", "off_loop"]

#: Seconds between two looks at the tasks before this one in its chain.
PARENTS = 1.0

#: Seconds before the first and most seconds between two looks where nobody tells us.
SOON, SELDOM = 0.01, 0.5


async def arrived(result: Any) -> None:
    """
    Return when a result's task has ended, leaving the event loop to others.

    Args:
        result: A `BatchResult`.

    Raises:
        Exception: Whatever a task before it in a chain has failed with.
    """
    if not result.is_elsewhere:
        if not is_listening(result.app):  # the first one waits for Redis, so not in the loop
            await asyncio.to_thread(listener_for, result.app)
        if is_listening(result.app):
            await _heard(result)
    if not result.reply.value:
        await _looked_for(result)


async def _heard(result: Any) -> None:
    bell = Doorbell.here()
    future = bell.future()
    watcher = partial(bell.ring, future)
    reply = result.own_reply()
    if not reply.inbox.watch(reply, watcher):
        return
    try:
        while result.parent and not future.done():
            await off_loop(result, result._maybe_reraise_parent_error)  # noqa: SLF001
            await asyncio.wait((future,), timeout=PARENTS)
        await future
    finally:
        reply.inbox.leave_soon(reply, watcher)


async def _looked_for(result: Any) -> None:
    pause = SOON
    while True:
        if result.parent:
            await off_loop(result, result._maybe_reraise_parent_error)  # noqa: SLF001
        if await off_loop(result, result.look):
            return
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, SELDOM)


async def off_loop(result: Any, ask: Callable[[], Any]) -> Any:
    """
    Return what a result's backend says, without keeping the event loop from others.

    Args:
        result: A `BatchResult`.
        ask: Asks its backend.
    """
    if is_of_thread(result.backend):
        return ask()  # its messages come to the thread that has sent the task
    return await asyncio.to_thread(ask)
