"""How many messages wait in the broker, for whoever scrapes this worker's numbers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable
from typing import Any

from celery_batch.depth_look import Look, can_look, open_look
from celery_batch.fork_guard import held_off

__all__ = ["Depths"]

logger = logging.getLogger(__name__)

#: Seconds for which a look is good, and for which a broker that did not answer is left alone.
_FRESH, _PAUSE = 1.0, 5.0

#: Seconds that whoever asks waits for an answer.
_PATIENCE = 2.0


class Depths:
    """
    Looks at queues when asked, on a connection and a thread of its own.

    Args:
        app: The Celery app.
        queues: The names of the queues.
    """

    def __init__(self, app: Any, queues: Iterable[str]) -> None:
        self._app = app
        self._queues = sorted(set(queues))
        self._look: Look | None = None
        self._found: dict[str, int] = {}
        self._good_until = -math.inf
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def look(self) -> dict[str, int]:
        """Return how many messages wait in each queue; nothing if the broker does not say."""
        with self._lock:
            if self._thread is None and time.monotonic() >= self._good_until:
                self._thread = threading.Thread(target=self._ask, name="batch-depths", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(_PATIENCE)
        return self._found if time.monotonic() < self._good_until else {}

    def _ask(self) -> None:
        try:
            self._found, pause = self._count(), _FRESH
        except Exception as error:  # noqa: BLE001 (whatever the broker's library raises)
            logger.debug("The broker does not say how many messages wait: %s", error)
            self._found, pause = {}, _PAUSE
            self.close()
        with self._lock:
            self._good_until, self._thread = time.monotonic() + pause, None

    def _count(self) -> dict[str, int]:
        if self._look is None:
            if not can_look(self._app):
                self._queues = []
                return {}
            with held_off():
                self._look = open_look(self._app)
        return {queue: self._look.count(queue) for queue in self._queues}

    def close(self) -> None:
        """Let go of the connection."""
        look, self._look = self._look, None
        if look is not None:
            look.close()
