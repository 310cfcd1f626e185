"""One thread for calls that may block while the event loop goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Full, Queue
from threading import Thread

from celery_batch.processes.fork_guard import forks_delayed

__all__ = ["BackgroundThread"]

logger = logging.getLogger(__name__)

#: Most calls that wait; a worker that is flooded drops the others.
_MOST = 1000

#: Seconds that `close` waits for the last calls.
_CLOSE_TIMEOUT = 2.0


class BackgroundThread:
    """Runs one call after another in a daemon thread; a standard executor has no bound."""

    def __init__(self, name: str = "batch-refusals") -> None:
        self._name = name
        self._queue: Queue[Callable[[], object] | None] = Queue(_MOST)
        self._thread: Thread | None = None

    def submit(self, function: Callable[[], object], then: Callable[[], object]) -> None:
        """Run a function that may block, unless too many wait; then, in any case, `then`."""

        def run() -> None:
            try:
                with forks_delayed():  # it may connect while a process is replaced
                    function()
            except Exception:
                logger.exception("A call in the background failed (%s)", self._name)
            then()

        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(run)
        except Full:
            logger.warning("Too many calls wait in the background (%s): one is dropped", self._name)
            then()

    def close(self) -> None:
        """Run the last calls, unless that takes too long."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._queue.put_nowait(None)
        except Full:
            return
        thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (run := self._queue.get()) is not None:
            run()
