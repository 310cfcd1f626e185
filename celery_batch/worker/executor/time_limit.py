"""
Soft time limits that interrupt the model and nothing else.

The pool raises `SoftTimeLimitExceeded` by a signal, wherever its process happens to be.
Between the tracers of a batch that would break the bookkeeping of unrelated items.

The signal does not name its batch.  While one batch is finished and the next one's model
runs, it may be for either; but it never comes before the time of its batch is up, so it is
for the running batch if that one's time is up.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler

__all__ = ["SoftLimit"]


class SoftLimit:
    """The soft time limit of one batch; as a context it handles the pool's signal, if none does."""

    def __init__(self, seconds: float | None = 0.0) -> None:
        # An earlier signal is for another batch; 0 where there is no other, None for no limit.
        self._expires = math.inf if seconds is None else time.monotonic() + seconds
        self._in_model = False
        self._has_expired = False
        self._before: Any = None

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler:
            self._before = self.handle_signals()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(SIG_SOFT_TIMEOUT, self._before)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the limit interrupt this block, at once if it has expired before."""
        self._in_model = True
        try:
            if self._has_expired:
                raise SoftTimeLimitExceeded
            yield
        finally:
            self._in_model = False

    def handle_signals(self) -> Any:
        """Handle the pool's signals from now on, and return the handler before."""
        return signal.signal(SIG_SOFT_TIMEOUT, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if time.monotonic() >= self._expires:
            self._has_expired = True
            if self._in_model:
                raise SoftTimeLimitExceeded
