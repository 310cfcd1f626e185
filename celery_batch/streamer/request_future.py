"""The answer to a request of several items that are tasks of their own."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from celery_batch.client.elsewhere import keep_address
from celery_batch.client.futures import EndedOnce, are_small
from celery_batch.client.listener import listener_for
from celery_batch.client.poller import Poller

__all__ = ["RequestFuture"]


class RequestFuture(EndedOnce):
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
            self._poll()
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
        self._follow_fork()
        outputs: list[Any] = super().result(self._patience if timeout is None else timeout)
        return outputs

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """
        Return what the first item that failed has failed with, or None.

        Args:
            timeout: As for `result`.

        Raises:
            TimeoutError: The items are not all answered by then.
            CancelledError: The future was cancelled.
        """
        self._follow_fork()
        return super().exception(self._patience if timeout is None else timeout)

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
            self._watched.clear()
            if not (are_small(self._results) and self._settle()):
                self._poll()

    def _poll(self) -> None:
        """Ask for the items where they are stored, as long as somebody holds this future."""
        me = weakref.ref(self)

        def poll() -> bool:
            future = me()
            return future is None or future._settle()  # noqa: SLF001 (our own)

        for result in self._results:
            keep_address(result.backend)
        Poller.of(self._results[0].app).add(poll)

    def _settle(self) -> bool:
        is_done = self.end(self._outputs)
        if is_done:
            _kept.discard(self)
        return is_done

    def _outputs(self) -> tuple[list[Any]] | None:
        """Return the outputs if they are all there."""
        for result in self._results:
            if result.look() is None:
                return None
        return ([result.maybe_throw() for result in self._results],)

    def _let_go(self) -> None:
        _kept.discard(self)
        for reply, watcher in self._watched:
            reply.inbox.leave_soon(reply, watcher)
        self._watched.clear()

    def __del__(self) -> None:
        self._let_go()


#: Those whose callbacks somebody waits for.
_kept: set[RequestFuture] = set()
