"""

Defers signals of a cold shutdown to where the worker's main thread only waits.

Celery cancels what runs and waits for its pool inside the signal's handler, on top of
whatever the main thread was about.  Should that hold a lock that the end of a batch
needs, or have read half of a pool process's answer, the worker never ends; nor does a
pool process while nobody has counted its answers.

Rule 1: a signal that comes at a bad moment is sent again a little later.
Rule 2: no signal waits long: after that it is handled wherever it finds us.
Rule 3: what follows the first cold shutdown's signal is in a hurry, and Celery's alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

__all__ = ["defer_signals", "defer_signals_while"]

#: Seconds from a bad moment to the next look.
_AGAIN = 0.005

#: Seconds that a signal is put off at most.
_TIMEOUT = 1.0

#: What waits, and on whose behalf: nothing is half done where the one calls the other.
_WAITS = frozenset({"kombu.utils.eventio", "billiard.popen_fork", "billiard.process"})
_LOOPS = frozenset(
    {
        ("kombu.asynchronous.hub", "create_loop"),
        ("celery.concurrency.asynpool", "_flush_outqueue"),  # it sleeps between two looks
        ("billiard.pool", "join"),
    }
)

_NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

#: Celery's names for its handlers.
_WARM, _COLD = "worker_Warm", "worker_Cold"


def defer_signals_while(frame: FrameType | None) -> bool:
    """
    Say whether a thread does nothing but wait, for events or for its pool's end.

    Args:
        frame: Of the thread, the innermost one.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if (module, frame.f_code.co_name) in _LOOPS:
            return True
        if module not in _WAITS:
            return False
        frame = frame.f_back
    return False


def defer_signals() -> None:
    """Stand before Celery's signal handlers of this worker, if it is the main thread's."""
    if threading.current_thread() is threading.main_thread():
        _Composure().take_over()


class _Composure:
    """What stands before Celery's handlers."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._put_off: SimpleQueue[int] = SimpleQueue()  # one that a handler may write to
        self._since: dict[int, float] = {}
        self._is_ending = False
        threading.Thread(target=self._send_again, name="batch-signals", daemon=True).start()

    def take_over(self) -> None:
        """Stand before those handlers that are Celery's, and not behind us yet."""
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler) and getattr(handler, "__name__", "") in (_WARM, _COLD):
                signal.signal(number, partial(self._on_signal, handler))

    def _on_signal(self, handler: Callable[..., Any], number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a pool process that has not got its own handlers yet
            handler(number, frame)
            return
        is_cold = getattr(handler, "__name__", "") == _COLD
        if is_cold and not self._is_ending and not self._is_good_moment(number, frame):
            self._put_off.put(number)
            return
        self._is_ending = self._is_ending or is_cold
        handler(number, frame)
        if not self._is_ending:  # the next of its kind may mean a cold one
            self.take_over()

    def _is_good_moment(self, number: int, frame: FrameType | None) -> bool:
        now = time.monotonic()
        return defer_signals_while(frame) or now - self._since.setdefault(number, now) > _TIMEOUT

    def _send_again(self) -> None:
        while True:
            number = self._put_off.get()
            time.sleep(_AGAIN)
            signal.pthread_kill(threading.main_thread().ident or 0, number)
