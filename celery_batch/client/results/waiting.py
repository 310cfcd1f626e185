"""
How threads and coroutines wait for a result.

Both give a function that wakes them to what subscribes to the result, and end the subscription
when they are woken, or give up.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.results.futures import future_of, has_ended
from celery_batch.client.results.listener import TIMEOUT, listener_for
from celery_batch.client.results.pending import TOO_LARGE, Callback, PendingResult

__all__ = [
    "LoopWaker",
    "ThreadWaiter",
    "block",
    "block_until_ended",
    "sleep",
    "wait_until_ended",
    "warn_if_loop_blocks",
]

#: Seconds after which a waiting thread checks whether the listener still runs, as in Celery.
CHECK_INTERVAL = 1.0

#: Has a function called, once and from any thread; returns what takes that back.
Subscribe = Callable[[Callback], Callable[[], object]]

#: Whether this process has been warned that it blocks an event loop.
_has_warned = False


def warn_if_loop_blocks(instead: str) -> None:
    """Warn once, before a thread blocks whose event loop runs, and name what to await instead."""
    global _has_warned  # noqa: PLW0603 (once in a process)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if _has_warned:
        return
    _has_warned = True
    warnings.warn(
        f"An event loop runs in this thread, and a blocking wait for results stops all of its"
        f" coroutines meanwhile: {instead}",
        RuntimeWarning,
        stacklevel=3,
    )


class ThreadWaiter:
    """A thread's wait for results; `on_interval`, called once a second, may end it by an error."""

    def __init__(self, app: Any, timeout: float | None, on_interval: Callable[[], object]) -> None:
        self._app = app
        self._end = None if timeout is None else time.monotonic() + timeout
        self._on_interval = on_interval
        #: Results that have come; filled from any thread.
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for any number."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def _at_most(self, seconds: float) -> float:
        left = self.left
        return seconds if left is None else min(left, seconds)

    def arrivals(self, results: Iterable[Any]) -> Iterator[Any]:
        """Yield `BatchResult` objects as their tasks end; Celery's `TimeoutError` ends the wait."""
        missing = {id(each): each for each in results}
        added = []
        try:
            for each in missing.values():
                pending, notify = each.pending_result, partial(self._arrived.put, each)
                if pending.registry.add_callback(pending, notify):
                    added.append((pending, notify))
                else:
                    notify()
            while missing:
                arrived = self._next(missing.values())
                if missing.pop(id(arrived), None) is not None:
                    yield arrived
        finally:
            for pending, notify in added:
                pending.registry.remove_callback_later(pending, notify)

    def _next(self, missing: Iterable[Any]) -> Any:
        """Return a result that was received; where there is no listener, poll for those missing."""
        while True:
            with suppress(queue.Empty):
                return self._arrived.get(timeout=self._at_most(CHECK_INTERVAL))
            listener = listener_for(self._app, self._at_most(TIMEOUT))
            if listener is not None and self.left != 0.0:
                listener.check_threads()
            else:
                for ended in filter(has_ended, missing):
                    self._arrived.put(ended)
                if not self._arrived.empty():
                    continue
                if self.left == 0.0:
                    raise CeleryTimeoutError("The operation timed out.")
            self._on_interval()


_local = threading.local()


class LoopWaker:
    """Completes futures of one event loop from other threads, many in one call of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    @classmethod
    def of_running_loop(cls) -> LoopWaker:
        """Return that of the event loop that runs in this thread."""
        loop = asyncio.get_running_loop()
        found: LoopWaker | None = getattr(_local, "loop_waker", None)
        if found is None or found.loop is not loop:
            found = _local.loop_waker = cls(loop)
        return found

    def complete(self, future: asyncio.Future[None]) -> None:
        """Have a future done soon, from any thread."""
        self._done.append(future)
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
                self.loop.call_soon_threadsafe(self._complete_all)

    def _complete_all(self) -> None:
        self._is_scheduled = False  # first, as another thread may add one meanwhile
        while self._done:
            future = self._done.popleft()
            if not future.done():
                future.set_result(None)


def block(subscribe: Subscribe, seconds: float | None) -> None:
    """Block this thread until it is woken, or for so many seconds; None for any number."""
    woken = queue.SimpleQueue[None]()
    unsubscribe = subscribe(partial(woken.put, None))
    try:
        with suppress(queue.Empty):
            woken.get(timeout=seconds)
    finally:
        unsubscribe()


async def sleep(subscribe: Subscribe, seconds: float | None) -> None:
    """Wait in a coroutine as `block` does in a thread."""
    waker = LoopWaker.of_running_loop()
    woken = waker.loop.create_future()
    wake = partial(waker.complete, woken)
    unsubscribe = subscribe(wake)
    # A bare timer costs a fifth of `asyncio.timeout`.
    timer = None if seconds is None else waker.loop.call_later(seconds, wake)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()
        unsubscribe()


def _subscribe(pending: PendingResult, callback: Callback) -> Callable[[], object]:
    """Have a function called with the end of a task of which this process is notified."""
    if not pending.registry.add_callback(pending, callback):
        callback()
    return partial(pending.registry.remove_callback_later, pending, callback)


def block_until_ended(result: Any, deadline: float) -> bool:
    """Return whether a result's task ends by a deadline, for a thread; it may have failed."""
    pending = result.notified
    if pending is not None:
        # The backend is not asked at the deadline: that may take seconds.
        block(partial(_subscribe, pending), max(deadline - time.monotonic(), 0.0))
        if pending.value != TOO_LARGE:
            return pending.value is not None
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    try:
        result.get(timeout=left, propagate=False)
    except CeleryTimeoutError:
        return False
    return True


async def wait_until_ended(result: Any, deadline: float = math.inf) -> bool:
    """Return whether a result's task ends by a deadline; raise the error of one before it."""
    left = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
    pending = None if result.parent else result.notified
    if pending is not None:
        await sleep(partial(_subscribe, pending), left)
        if pending.value != TOO_LARGE:
            return pending.value is not None
        left = None if left is None else max(deadline - time.monotonic(), 0.0)
    future = future_of(result)
    try:
        await asyncio.wait((asyncio.wrap_future(future),), timeout=left)
        if future.done() and result.parent and (error := future.exception()) and not result.ready():
            raise error
        return future.done()
    finally:
        future.cancel()
