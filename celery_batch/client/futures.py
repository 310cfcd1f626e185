"""A result as a `concurrent.futures.Future`."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from celery_batch.client.listener import listener_for
from celery_batch.client.reply import Reply

__all__ = ["ResultFuture", "future_of"]


class ResultFuture(Future):  # type: ignore[type-arg]
    """
    Done when its task is; what is stored is decoded by whoever asks for it.

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
        if self._reply.inbox.watch(self._reply, self.settle):
            self.add_done_callback(self._abandon)
        else:
            self.settle()

    def settle(self) -> None:
        """Wake those who wait."""
        if self.set_running_or_notify_cancel():
            self.set_result(None)

    def result(self, timeout: float | None = None) -> Any:
        """
        Return what the task returned.

        Args:
            timeout: Most seconds to wait.

        Raises:
            TimeoutError: It has not ended by then.
            CancelledError: The future was cancelled.
            Exception: Whatever the task has failed with.
        """
        super().result(timeout)
        return self._batch_result.get(timeout, disable_sync_subtasks=False)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """
        Return what the task has failed with, or None.

        Args:
            timeout: Most seconds to wait.

        Raises:
            TimeoutError: It has not ended by then.
            CancelledError: The future was cancelled.
        """
        super().exception(timeout)
        try:
            self._batch_result.get(timeout, disable_sync_subtasks=False)
        except Exception as error:  # noqa: BLE001 (it is what was asked for)
            return error
        return None

    def _abandon(self, _done: Any) -> None:
        if self.cancelled():
            self._reply.inbox.leave_soon(self._reply, self.settle)


def future_of(result: Any) -> ResultFuture:
    """
    Return a future of a result, kept alive until its task has ended.

    Args:
        result: A `BatchResult`.
    """
    future = ResultFuture(result)
    if result._ignored:  # noqa: SLF001 (it is there already: nothing)
        future.settle()
    elif listener_for(result.app) is None:
        threading.Thread(target=_wait, args=(result, future), daemon=True).start()
    else:
        future.watch()
    return future


def _wait(result: Any, future: ResultFuture) -> None:
    try:
        result.get(propagate=False, disable_sync_subtasks=False)
    except BaseException as error:  # noqa: BLE001 (whoever waits shall have it)
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        future.settle()
