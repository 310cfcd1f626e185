"""How many messages wait in the broker, for whoever scrapes this worker's numbers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from celery_batch.depth_look import Look, can_look, open_look

__all__ = ["Depths"]

logger = logging.getLogger(__name__)

#: Seconds for which a look is good, and for which a broker that did not answer is left alone.
_FRESH, _PAUSE = 1.0, 5.0


class Depths:
    """
    Looks at queues when asked, on a connection of its own.

    A broker that does not answer costs whoever asks a second or so; nobody else waits.

    Args:
        app: The Celery app.
        queues: The names of the queues.
    """

    def __init__(self, app: Any, queues: Iterable[str]) -> None:
        self._app = app
        self._queues = sorted(set(queues))
        self._look: Look | None = None
        self._found: dict[str, int] = {}
        self._good_until = 0.0
        self._lock = threading.Lock()
        self._can_look: bool | None = None

    def look(self) -> dict[str, int]:
        """Return how many messages wait in each queue; nothing if the broker does not say."""
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._found = self._ask()
            return self._found

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            look, self._look = self._look, None
            self._good_until = float("inf")
        if look is not None:
            look.close()

    def _ask(self) -> dict[str, int]:
        try:
            if self._can_look is None:
                self._can_look = can_look(self._app)
            if not self._can_look:
                return {}
            if self._look is None:
                self._look = open_look(self._app)
            found = {queue: self._look.count(queue) for queue in self._queues}
        except Exception as error:  # noqa: BLE001 (whatever the broker's library raises)
            logger.debug("The broker does not say how many messages wait: %s", error)
            look, self._look = self._look, None
            self._good_until = time.monotonic() + _PAUSE
            if look is not None:
                look.close()
            return {}
        self._good_until = time.monotonic() + _FRESH
        return found
