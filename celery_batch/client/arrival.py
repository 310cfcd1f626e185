"""How a coroutine waits for a result."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from celery_batch.client.elsewhere import is_of_thread, keep_address
from celery_batch.client.listener import is_listening, listener_for
from celery_batch.client.loops import Doorbell
from celery_batch.client.poller import SELDOM, SOON
from celery_batch.client.reply import Reply

__all__ = ["PARENTS", "arrived", "arrived_by", "begin_listening", "off_loop"]

#: Seconds between two looks at the tasks before this one in its chain.
PARENTS = 1.0


async def arrived(result: Any) -> None:
    """
    Return when a result's task has ended, leaving the event loop to others.

    Args:
        result: A `BatchResult`.

    Raises:
        Exception: Whatever a task before it in a chain has failed with.
    """
    if not result.is_elsewhere:
        if not is_listening(result.app):
            await begin_listening(result.app)
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
    scope = asyncio.timeout(max(deadline - time.monotonic(), 0.0))
    try:
        async with scope:
            await arrived(result)
    except TimeoutError:  # the backend may raise it, too
        if not scope.expired():
            raise
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
    backend = result.backend
    keep_address(backend)
    return await _in_thread(ask, _one_looker if is_of_thread(backend) else _lookers)


async def begin_listening(app: Any) -> None:
    """
    Have a listener begin, which may wait for Redis, so not in the loop.

    Args:
        app: The Celery app.
    """
    await _in_thread(partial(listener_for, app), _lookers)


async def _in_thread(ask: Callable[[], Any], threads: Threads) -> Any:
    """Call a function in a thread: not one of asyncio's, where others' jobs may block."""
    loop = asyncio.get_running_loop()
    try:
        waiting = loop.run_in_executor(threads.executor(), copy_context().run, ask)
    except RuntimeError:  # the interpreter is ending, and starts no thread any more
        return ask()
    return await waiting


class Threads:
    """
    A few threads, in a fork others.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._executor: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._forget)

    def executor(self) -> ThreadPoolExecutor:
        """Return the executor that has them."""
        found = self._executor
        if found is None:
            name = "celery-batch-look"
            found = self._executor = ThreadPoolExecutor(self._most, thread_name_prefix=name)
        return found

    def _forget(self) -> None:
        self._executor = None


#: Look for results; over RPC one at a time, which takes all that has come out of the queue.
_lookers, _one_looker = Threads(8), Threads(1)
