"""

Soft time limits that interrupt the model and nothing else.

The pool raises `SoftTimeLimitExceeded` wherever its process happens to be, by a
signal.  Between the tracers of a batch that would tear the bookkeeping of items
that have nothing to do with each other.

The signal does not say for which batch it is meant.  Where one batch is settled
while the next one's model runs, it may be for either; but it never comes before the
time of its batch is up, so it is for the one that runs if that one's is.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler

__all__ = ["LimitSignals", "SoftLimit"]


class SoftLimit:
    """Holds a soft time limit back while a batch is settled; elsewhere than in a pool, nothing."""

    def __init__(self) -> None:
        self._in_model = False
        self._struck = False
        self._before: Any = None

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler:
            self._before = signal.signal(SIG_SOFT_TIMEOUT, self._strike)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(SIG_SOFT_TIMEOUT, self._before)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """
        Say that the model runs in this block.

        Raises:
            SoftTimeLimitExceeded: The limit has passed, here or on the way here.
        """
        self._in_model = True
        try:
            if self._struck:
                raise SoftTimeLimitExceeded
            yield
        finally:
            self._in_model = False

    def strike(self) -> None:
        """
        Take note that the limit has passed.

        Raises:
            SoftTimeLimitExceeded: The model runs.
        """
        self._struck = True
        if self._in_model:
            raise SoftTimeLimitExceeded

    def _strike(self, _number: int, _frame: FrameType | None) -> None:
        self.strike()


class LimitSignals:
    """Tells for which batch a soft limit's signal is meant; on the main thread."""

    def __init__(self) -> None:
        self._limit = SoftLimit()
        self._due = float("inf")
        #: Whether signals are for batches now.
        self._ours = False

    def aim(self, seconds: float | None) -> SoftLimit:
        """
        Let signals be for the batch that is taken up now; called before the pool hears of it.

        Args:
            seconds: Its soft limit.
        """
        self._due = float("inf") if seconds is None else time.monotonic() + seconds
        self._limit = SoftLimit()
        if not self._ours:
            self._ours = True
            signal.signal(SIG_SOFT_TIMEOUT, self._strike)
        return self._limit

    def leave_alone(self) -> None:
        """Let signals be what they are in any pool: an ordinary task is taken up now."""
        self._ours = False
        signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)

    def _strike(self, _number: int, _frame: FrameType | None) -> None:
        if time.monotonic() >= self._due:
            self._limit.strike()
