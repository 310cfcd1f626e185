"""The answer to a request of several items that are tasks of their own."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.listener import listener_for

__all__ = ["RequestFuture"]

#: A request waits for its items wherever it is made, also in a task of somebody's.
_ANYWHERE: dict[str, Any] = {"disable_sync_subtasks": False}


class RequestFuture(Future):  # type: ignore[type-arg]
    """
    Done when all items of a request are answered.

    One that nobody holds, and that has no callbacks, leaves nothing behind; so does one
    that is cancelled, while its items go their way.

    Args:
        results: A `BatchResult` for each item, in order.
        patience: Seconds to wait where nobody says how long; None for ever.
    """

    def __init__(self, results: list[Any], patience: float | None) -> None:
        super().__init__()
        self._patience = patience
        self._results = results
        self._process = os.getpid()
        self._heard = itertools.count(1)
        self._watched: list[Any] = []

    def watch(self) -> None:
        """Be done when all items are answered."""
        if not self._results:
            self._settle()
        elif listener_for(self._results[0].app) is None:
            threading.Thread(target=_wait, args=(self,), daemon=True).start()
        else:
            self._listen()

    def result(self, timeout: float | None = None) -> list[Any]:
        """
        Return the outputs, one for each item, in order.

        Args:
            timeout: Most seconds to wait; the streamer's ``worker_timeout`` unless given.

        Raises:
            TimeoutError: They are not all there by then.
            CancelledError: The future was cancelled.
            Exception: What the first item that failed has failed with.
        """
        timeout = self._patience if timeout is None else timeout
        end = None if timeout is None else time.monotonic() + timeout
        self._follow_fork()
        super().result(timeout)
        try:
            return [
                result.get(None if end is None else max(end - time.monotonic(), 0.0), **_ANYWHERE)
                for result in self._results
            ]
        except CeleryTimeoutError as error:  # it was told of, and is gone from Redis
            raise TimeoutError from error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """
        Return what the first item that failed has failed with, or None.

        Args:
            timeout: As for `result`.

        Raises:
            TimeoutError: The items are not all answered by then.
            CancelledError: The future was cancelled.
        """
        timeout = self._patience if timeout is None else timeout
        self._follow_fork()
        super().exception(timeout)
        try:
            self.result(timeout)
        except Exception as error:  # noqa: BLE001 (it is what was asked for)
            return error
        return None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """
        Have a function called with this future when it is done; until then it is kept alive.

        Args:
            fn: Called in a thread that others wait for, so briefly.
        """
        self._follow_fork()
        _kept.add(self)
        super().add_done_callback(fn)
        if self.done():
            _kept.discard(self)

    def cancel(self) -> bool:
        """Give up waiting and return whether that was in time; the items go their way."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._let_go()
        return is_cancelled

    def _listen(self) -> None:
        me = weakref.ref(self)

        def heard() -> None:
            future = me()
            if future is not None:
                future._count()  # noqa: SLF001 (our own)

        for result in self._results:
            reply = result.own_reply()
            if reply.inbox.watch(reply, heard):
                self._watched.append((reply, heard))
            else:
                self._count()

    def _follow_fork(self) -> None:
        """Listen in this process, where it is a fork of the one that has asked."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._condition = threading.Condition()  # somebody may have held the old one
            self._heard = itertools.count(1)
            self._watched = []
            if not self.done():
                self.watch()

    def _count(self) -> None:
        if next(self._heard) == len(self._results):
            self._settle()

    def _settle(self) -> None:
        self._watched.clear()
        if self.set_running_or_notify_cancel():
            self.set_result(None)
        _kept.discard(self)

    def _let_go(self) -> None:
        _kept.discard(self)
        for reply, watcher in self._watched:
            reply.inbox.leave_soon(reply, watcher)
        self._watched.clear()

    def __del__(self) -> None:
        self._let_go()


#: Those whose callbacks somebody waits for.
_kept: set[RequestFuture] = set()


def _wait(future: RequestFuture) -> None:
    """Wait in Celery's own way, where nobody tells us."""
    try:
        for result in future._results:  # noqa: SLF001 (our own)
            result.get(propagate=False, **_ANYWHERE)
    except BaseException as error:  # noqa: BLE001 (whoever waits shall have it)
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        future._settle()  # noqa: SLF001 (the same)
