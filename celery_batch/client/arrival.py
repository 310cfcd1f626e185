"""How a coroutine waits for a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_batch.client.elsewhere import is_of_thread
from celery_batch.client.listener import is_listening, listener_for
from celery_batch.client.loops import Doorbell
from celery_batch.client.reply import Reply

__all__ = ["PARENTS", "SELDOM", "SOON", "arrived", "arrived_by", "off_loop"]

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


async def arrived_by(result: Any, deadline: float) -> bool:
    """
    Return whether a result's task has ended in time, leaving the event loop to others.

    Args:
        result: A `BatchResult`.
        deadline: Until when it is waited for, by the monotonic clock.

    Raises:
        Exception: Whatever a task before it in a chain has failed with.
    """
    if not (result.is_elsewhere or result.parent) and is_listening(result.app):
        reply = result.own_reply()
        await _heard_by(reply, deadline)
        if reply.value or reply.value is None:
            return reply.value is not None
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
            await arrived(result)
    except TimeoutError:
        return False
    return True


async def _heard_by(reply: Reply, deadline: float) -> None:
    """Return when there is a reply, or it is too late; with a bare timer, a fifth of the price."""
    bell = Doorbell.here()
    future = bell.future()
    watcher = partial(bell.ring, future)
    if not reply.inbox.watch(reply, watcher):
        return
    timer = bell.loop.call_later(max(deadline - time.monotonic(), 0.0), bell.ring, future)
    try:
        await future
    finally:
        timer.cancel()
        if reply.value is None:
            reply.inbox.leave_soon(reply, watcher)


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
        if reply.value is None:
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
