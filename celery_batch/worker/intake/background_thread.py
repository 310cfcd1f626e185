"""One thread for calls that may block while the event loop goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Full, Queue
from threading import Thread

from celery_batch.fork_guard import forks_delayed

__all__ = ["BackgroundThread"]

logger = logging.getLogger(__name__)

#: What waits to be done, at most; of what a worker is flooded with beyond that, nothing is.
_MOST = 1000

#: Seconds that a stop waits for the last of them.
_LAST = 2.0


class BackgroundThread:
    """
    Does one thing after another, in a thread that is started when there is the first.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str = "batch-teller") -> None:
        self._name = name
        self._queue: Queue[Callable[[], object] | None] = Queue(_MOST)
        self._thread: Thread | None = None

    def soon(self, tell: Callable[[], object], then: Callable[[], object]) -> None:
        """
        Do something, and go on from there; only go on if too much waits already.

        Args:
            tell: Does it, and may take its time.
            then: Called in any case.
        """

        def both() -> None:
            try:
                with forks_delayed():  # it may connect while a process is replaced
                    tell()
            except Exception:
                logger.exception("Could not do what was put off (%s)", self._name)
            then()

        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(both)
        except Full:
            logger.warning("Too much is put off (%s): one thing less is done", self._name)
            then()

    def close(self) -> None:
        """Tell the last, unless that takes too long."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._queue.put_nowait(None)
        except Full:
            return
        thread.join(_LAST)

    def _run(self) -> None:
        while (both := self._queue.get()) is not None:
            both()
