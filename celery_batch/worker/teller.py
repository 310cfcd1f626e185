"""One thread that stores what callers must hear, where a result backend may be away for long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Full, Queue
from threading import Thread

__all__ = ["Teller"]

logger = logging.getLogger(__name__)

#: Callers of refused messages who wait to be told; whoever floods a worker is not told of more.
_MOST = 1000

#: Seconds that a stop waits for the last of them.
_LAST = 2.0


class Teller:
    """Does one thing after another, in a thread that is started when there is the first."""

    def __init__(self) -> None:
        self._queue: Queue[Callable[[], object] | None] = Queue(_MOST)
        self._thread: Thread | None = None

    def soon(self, tell: Callable[[], object], then: Callable[[], object]) -> None:
        """
        Tell somebody, and go on from there; only go on if too many wait already.

        Args:
            tell: Tells, and may take its time.
            then: Called in any case.
        """

        def both() -> None:
            try:
                tell()
            except Exception:
                logger.exception("Could not tell a caller")
            then()

        if self._thread is None:
            self._thread = Thread(target=self._run, name="batch-teller", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(both)
        except Full:
            logger.warning("Too many messages are refused for their callers to be told")
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
