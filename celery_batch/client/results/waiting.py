"""How threads and coroutines wait for a result."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from celery.backends.rpc import RPCBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.results.listener import TIMEOUT, is_listening, listener_for
from celery_batch.client.results.pending import Reply
from celery_batch.client.results.poller import SELDOM, SOON

__all__ = [
    "PARENTS",
    "LoopWaker",
    "ThreadWait",
    "arrived",
    "arrived_by",
    "begin_listening",
    "is_elsewhere",
    "is_of_thread",
    "keep_address",
    "off_loop",
]


#: Seconds after which a waiting thread looks around, as in Celery.
PIECE = 1.0


class ThreadWait:
    """
    A thread's wait, with an end and something to do meanwhile.

    Args:
        app: The Celery app.
        timeout: Most seconds to wait; None for as long as it takes.
        on_interval: Called about once a second; what it raises ends the wait.
    """

    def __init__(self, app: Any, timeout: float | None, on_interval: Callable[[], object]) -> None:
        self._app = app
        self._end = None if timeout is None else time.monotonic() + timeout
        self._on_interval = on_interval
        self._has_found = False
        self._rung: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: To be called, from any thread, with what has come.
        self.ring = self._rung.put

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for any number."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def _shorter(self, seconds: float) -> float:
        """Return that many seconds, or those that are left if they are fewer."""
        left = self.left
        return seconds if left is None else min(left, seconds)

    def wait(self, look: Callable[[], Any]) -> Any:
        """
        Return what has come, or what a look has found where nobody tells us.

        Args:
            look: Asks the store; returns None if nothing is there.

        Raises:
            TimeoutError: Celery's; the time is over.
        """
        while True:
            pause = 0.0 if self._has_found else PIECE  # there may be more
            with suppress(queue.Empty):
                return self._rung.get(timeout=self._shorter(pause))
            listener = listener_for(self._app, self._shorter(TIMEOUT))
            if listener is None or self.left == 0.0:
                found = look()
                self._has_found = found is not None
                if found is not None:
                    return found
                if self.left == 0.0:
                    raise CeleryTimeoutError("The operation timed out.")
            else:
                self._has_found = False
                listener.check()
            self._on_interval()


_local = threading.local()


class LoopWaker:
    """
    Hands futures over to the event loop that they belong to.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[asyncio.Future[None]] = deque()
        self._is_ringing = False

    @classmethod
    def here(cls) -> LoopWaker:
        """Return that of the event loop that runs in this thread."""
        loop = asyncio.get_running_loop()
        found: LoopWaker | None = getattr(_local, "doorbell", None)
        if found is None or found.loop is not loop:
            found = _local.doorbell = cls(loop)
        return found

    def future(self) -> asyncio.Future[None]:
        """Return a new future of this loop."""
        return self.loop.create_future()

    def ring(self, future: asyncio.Future[None]) -> None:
        """Have a future done soon, from any thread."""
        self._done.append(future)
        if not self._is_ringing:
            self._is_ringing = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self.loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self._is_ringing = False  # before we look: who comes later rings again
        while self._done:
            future = self._done.popleft()
            if not future.done():
                future.set_result(None)


def is_elsewhere(backend: Any, app: Any) -> bool:
    """
    Return whether a backend is not where an app's listener hears and looks.

    Args:
        backend: Celery's result backend; perhaps the app's, as another thread or process has it.
        app: The Celery app.
    """
    usual = app.backend
    if backend is usual:
        return False
    return type(backend) is not type(usual) or _place(backend) != _place(usual)


def _place(backend: Any) -> tuple[Any, Any]:
    url = backend.as_uri(include_password=True)  # without, two databases look the same
    return url, getattr(backend, "connparams", None)


def is_of_thread(backend: Any) -> bool:
    """
    Return whether results come to the thread that has asked, and to no other's backend.

    Args:
        backend: Celery's result backend.
    """
    return isinstance(backend, RPCBackend)


def keep_address(backend: Any) -> None:
    """
    Have a backend remember where its results come to, so that another thread may look there.

    The backend of RPC takes the address of the thread that uses it first.

    Args:
        backend: Celery's result backend, of the thread that has asked.
    """
    if is_of_thread(backend):
        getattr(backend, "oid")  # noqa: B009 (it is cached once it was read)


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
            await _received(result)
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
    waker = LoopWaker.here()
    future = waker.future()
    watcher = partial(waker.ring, future)
    if not reply.pending.watch(reply, watcher):
        return
    timer = waker.loop.call_later(max(deadline - time.monotonic(), 0.0), waker.ring, future)
    try:
        await future
    finally:
        timer.cancel()
        if reply.value is None:
            reply.pending.leave_soon(reply, watcher)


async def _received(result: Any) -> None:
    waker = LoopWaker.here()
    future = waker.future()
    watcher = partial(waker.ring, future)
    reply = result.own_reply()
    if not reply.pending.watch(reply, watcher):
        return
    try:
        while result.parent and not future.done():
            await off_loop(result, result._maybe_reraise_parent_error)  # noqa: SLF001
            await asyncio.wait((future,), timeout=PARENTS)
        await future
    finally:
        if reply.value is None:
            reply.pending.leave_soon(reply, watcher)


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
