"""To hear that the server is told to stop, without keeping it from hearing so itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["Closing", "on_stop"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Closing:
    """Whether the server is told to stop, for answers that would keep it from that."""

    def __init__(self) -> None:
        self.has_begun = False
        self._calls: list[Callable[[], object]] = []
        #: The process that hears of it: of a fork nobody knows yet whether its server does.
        self._hears: int | None = None
        self.listen()

    def listen(self) -> None:
        """
        Begin to hear of it, unless that is done in this process.

        gunicorn has its handlers at first, uvicorn with a request, and gunicorn's forks with
        ``--preload`` when they are about to serve; see `webapp.gunicorn_conf`.
        """
        if self._hears != os.getpid() and on_stop(self._begin):
            self._hears = os.getpid()

    def then(self, call: Callable[[], object]) -> None:
        """
        Have something called when it begins.

        Args:
            call: As for `on_stop`.
        """
        self._calls.append(call)

    def _begin(self) -> None:
        self.has_begun = True
        for call in self._calls:
            call()


def on_stop(call: Callable[[], object]) -> bool:
    """
    Have something called when the server is told to stop, before its own handlers.

    gunicorn and uvicorn stop when their open answers are done, and tell nobody who writes
    one.

    Args:
        call: Runs inside a signal's handler: it may set a flag, and not much more.

    Returns:
        Whether there was a server's handler to stand before, in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    found = False
    for number in _SIGNALS:
        theirs = signal.getsignal(number)
        # Python's own interrupt handler is no server's: a script keeps its Ctrl-C as it is.
        if callable(theirs) and theirs is not signal.default_int_handler:
            signal.signal(number, _first(call, theirs))
            found = True
    return found


def _first(
    call: Callable[[], object], theirs: Callable[[int, FrameType | None], object]
) -> Callable[[int, FrameType | None], object]:
    def handle(number: int, frame: FrameType | None) -> object:
        call()
        return theirs(number, frame)

    return handle
