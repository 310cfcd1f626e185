"""How a thread waits for a result."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.listener import listener_for
from celery_batch.client.store import PATIENCE

__all__ = ["Patience"]

#: Seconds after which a waiting thread looks around, as in Celery.
PIECE = 1.0


class Patience:
    """
    A thread's wait, with an end and something to do meanwhile.

    Args:
        app: The Celery app.
        timeout: Most seconds to wait; None for as long as it takes.
        on_interval: Called about once a second; what it raises ends the wait.
    """

    def __init__(self, app: Any, timeout: float | None, on_interval: Callable[[], object]) -> None:
        self._app = app
        self._end = None if timeout is None else time.monotonic() + timeout
        self._on_interval = on_interval
        self._has_found = False
        self._rung: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: To be called, from any thread, with what has come.
        self.ring = self._rung.put

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for any number."""
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def _shorter(self, seconds: float) -> float:
        """Return that many seconds, or those that are left if they are fewer."""
        left = self.left
        return seconds if left is None else min(left, seconds)

    def wait(self, look: Callable[[], Any]) -> Any:
        """
        Return what has come, or what a look has found where nobody tells us.

        Args:
            look: Asks the store; returns None if nothing is there.

        Raises:
            TimeoutError: Celery's; the time is over.
        """
        while True:
            pause = 0.0 if self._has_found else PIECE  # there may be more
            with suppress(queue.Empty):
                return self._rung.get(timeout=self._shorter(pause))
            listener = listener_for(self._app, self._shorter(PATIENCE))
            if listener is None or self.left == 0.0:
                found = look()
                self._has_found = found is not None
                if found is not None:
                    return found
                if self.left == 0.0:
                    raise CeleryTimeoutError("The operation timed out.")
            else:
                self._has_found = False
                listener.check()
            self._on_interval()
