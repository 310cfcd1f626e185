"""Gives up on calls that have no time limit of their own, such as a network file system's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["BoundedCalls"]

_T = TypeVar("_T")


class BoundedCalls:
    """
    Runs each call on a thread of its own, which a caller leaves behind if it does not return.

    While such a thread is blocked, further calls fail at once: they would block as well.
    """

    def __init__(self) -> None:
        self._blocked: list[threading.Thread] = []

    def run(self, call: Callable[[], _T], seconds: float) -> _T:
        """
        Return what a call returns.

        Raises:
            TimeoutError: It has not returned in so many seconds, or an earlier one is blocked.
            BaseException: What the call raises.
        """
        self._blocked = [thread for thread in self._blocked if thread.is_alive()]
        if self._blocked:
            raise TimeoutError("an earlier call has not returned yet")
        future: Future[_T] = Future()
        thread = threading.Thread(target=_run, args=(call, future), name="bounded", daemon=True)
        thread.start()
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():  # the call's own
                raise
            self._blocked.append(thread)
            raise TimeoutError(f"a call has not returned in {seconds:g} s") from None


def _run(call: Callable[[], _T], future: Future[_T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (the caller's)
        future.set_exception(error)
