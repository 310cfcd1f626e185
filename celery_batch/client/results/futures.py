"""A result as a `concurrent.futures.Future`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from celery.utils.functional import noop

from celery_batch.client.results.listener import listener_for
from celery_batch.client.results.pending import Reply
from celery_batch.client.results.poller import SMALL, Poller
from celery_batch.client.results.waiting import keep_address

__all__ = ["EndedOnce", "ResultFuture", "are_small", "future_of"]


class EndedOnce(Future):  # type: ignore[type-arg]
    """A future that ends with a value, an error or by being cancelled, and tells who waits."""

    def __init__(self) -> None:
        super().__init__()
        #: Whoever takes it out ends the future; a list, of which one thread alone can take it.
        self._open = [True]

    def cancel(self) -> bool:
        """Give up waiting and return whether that was in time; see `concurrent.futures`."""
        if not super().cancel():
            return False
        if self._begins_to_end():
            self.set_running_or_notify_cancel()  # else `wait` and `as_completed` never return
        return True

    def end(self, value: Callable[[], tuple[Any] | None]) -> bool:
        """
        End if there is a value, or an error; return whether nothing is left to do.

        What it ends with is the value itself: asyncio and others read it without `result`.

        Args:
            value: Returns the value in a tuple, or None if there is none as yet; what it
                raises is the future's error.
        """
        if self.done():
            return True
        error: BaseException | None = None
        try:
            found = value()
        except BaseException as raised:  # noqa: BLE001 (whoever waits shall have it)
            found, error = None, raised
        if error is None and found is None:
            return False
        if not self._begins_to_end() or not self.set_running_or_notify_cancel():
            return True
        if error is not None:
            self.set_exception(error)
        elif found is not None:
            self.set_result(found[0])
        return True

    def _begins_to_end(self) -> bool:
        try:
            return self._open.pop()
        except IndexError:
            return False


class ResultFuture(EndedOnce):
    """
    Done when its task is, with the value that it returned or the error that it failed with.

    `cancel` gives up waiting and leaves the task alone.

    Args:
        result: The result it stands for.
    """

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._batch_result = result
        self._reply: Reply = result.own_reply()

    def watch(self) -> None:
        """Be done when the reply is heard of."""
        if self._reply.pending.watch(self._reply, self._received):
            self.add_done_callback(self._abandon)
            if self._batch_result.parent is not None:
                self._watch_parents()
        else:
            self._received()

    def _watch_parents(self) -> None:
        """Fail with a task before this one in its chain: then nobody tells of this one."""
        me = weakref.ref(self)

        def poll() -> bool:
            future = me()
            return future is None or future._settle(noop)  # noqa: SLF001 (our own)

        Poller.of(self._batch_result.app).add(poll)

    def poll(self) -> None:
        """Be done when the result is found where it is stored."""
        result = self._batch_result
        keep_address(result.backend)
        Poller.of(result.app).add(partial(self._settle, result.look))

    def _received(self) -> None:
        result = self._batch_result
        if not (are_small([result]) and self._settle(result._open)):  # noqa: SLF001
            self.poll()

    def _settle(self, look: Callable[[], Any]) -> bool:
        return self.end(partial(_value, self._batch_result, look))

    def _abandon(self, _done: Any) -> None:
        if self.cancelled():
            self._reply.pending.leave_soon(self._reply, self._received)


def future_of(result: Any) -> ResultFuture:
    """
    Return a future of a result, kept alive until its task has ended.

    Args:
        result: A `BatchResult`.
    """
    future = ResultFuture(result)
    if result._ignored:  # noqa: SLF001 (it is there already: nothing)
        future.set_result(None)
    elif result.is_elsewhere or listener_for(result.app) is None:
        future.poll()
    else:
        future.watch()
    return future


def are_small(results: Iterable[Any]) -> bool:
    """
    Return whether results have been told, and are decoded in no time.

    Args:
        results: `BatchResult` objects.
    """
    left = SMALL
    for result in results:
        value = result.reply.value
        left -= len(value or b"")
        if not value or left < 0:
            return False
    return True


def _value(result: Any, look: Callable[[], Any]) -> tuple[Any] | None:
    if look() is None:
        if result.parent:
            result._maybe_reraise_parent_error()  # noqa: SLF001
        return None
    return (result.maybe_throw(),)
