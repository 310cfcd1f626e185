"""Gives up on calls that have no time limit of their own, such as a network file system's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["BoundedCalls"]

_T = TypeVar("_T")

#: Seconds after which a call that was left behind is taken for blocked: until then it may be slow.
_BLOCKED_AFTER = 5.0

#: How many calls are left behind at most.
_MOST_LEFT = 8


class BoundedCalls:
    """Runs each call on a thread of its own, which is left behind if the call does not return."""

    # While such a thread is blocked, further calls fail at once: they would block as well.  If it
    # only took longer than its caller could wait, others may try.

    def __init__(self) -> None:
        #: The threads that were left behind, and when they started, on the monotonic clock.
        self._left: dict[threading.Thread, float] = {}

    def run(self, call: Callable[[], _T], seconds: float) -> _T:
        """Return what a call returns, or raise `TimeoutError` after so many seconds."""
        if seconds <= 0:
            raise TimeoutError("no time is left for a call")
        began = time.monotonic()
        if self._is_blocked(began):
            raise TimeoutError("an earlier call has not returned yet")
        future: Future[_T] = Future()
        thread = threading.Thread(target=_run, args=(call, future), name="bounded", daemon=True)
        thread.start()
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():  # the call's own
                raise
            self._left[thread] = began
            raise TimeoutError(f"a call has not returned in {seconds:g} s") from None

    def _is_blocked(self, now: float) -> bool:
        for thread in list(self._left):
            if not thread.is_alive():
                self._left.pop(thread, None)
        started = list(self._left.values())
        return len(started) >= _MOST_LEFT or any(now - each >= _BLOCKED_AFTER for each in started)


def _run(call: Callable[[], _T], future: Future[_T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 (the caller's)
        future.set_exception(error)
