"""
Deletes results that nobody reads again, many at once and in the background.

Rule 1: no caller waits for it, and none learns that it has failed: results expire anyway.
Rule 2: it keeps no output: a result's key is enough.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError

from celery_batch.client.background import OnDemandThread, PerProcess
from celery_batch.client.results.result import is_ours_alone
from celery_batch.payloads.results import forget_payload, mentions_payload

__all__ = ["Forgetting", "forget_soon"]

logger = logging.getLogger(__name__)

#: Seconds for which results are collected.
GATHER = 1.0

#: Most keys in one command: Redis serves no other client meanwhile.
PIECE = 500

#: Most results that wait to be deleted; of more the oldest expire.
MOST = 50_000


def forget_soon(app: Any, results: Iterable[Any]) -> None:
    """
    Have results deleted soon where Celery stores them in Redis; from any thread or coroutine.

    Args:
        app: The Celery app.
        results: Of calls that have ended, and of which this process alone knows the ids.
    """
    Forgetting.of(app).add(results)


class Forgetting(PerProcess):
    """The results of one app that this process is about to delete."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        #: The key of each, and its stored value if that refers to a payload.
        self._waiting: deque[tuple[Any, bytes | None]] = deque(maxlen=MOST)
        self._thread = OnDemandThread("celery-batch-forgetting", self._delete_some)
        self._is_woken = False
        #: Whether results stay: workers with this setting look for those of what has run.
        self._is_off = bool(app.conf.worker_deduplicate_successful_tasks)

    def add(self, results: Iterable[Any]) -> None:
        """Have results deleted soon."""
        if self._is_off:
            return
        own = self._app.backend
        for result in results:
            backend = result.backend
            if backend is own and is_ours_alone(result, backend):
                value = result.pending_result.value
                payload = value if mentions_payload(value) else None
                self._waiting.append((backend.get_key_for_task(result.id), payload))
        if self._waiting and not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the interpreter is ending
                self._thread.wake()

    def _delete_some(self) -> float | None:
        self._is_woken = False  # before the look: what comes from now on wakes the thread again
        if not self._waiting:
            return None
        time.sleep(GATHER)
        try:
            while piece := self._next_piece():
                self._delete(piece)
        except NoPermissionError as error:
            self._is_off = True
            self._waiting.clear()
            logger.info("Redis does not allow UNLINK (%s): results stay until they expire", error)
        except Exception as error:  # noqa: BLE001 (whatever it is, no caller waits for this)
            self._waiting.clear()
            logger.debug("Results could not be deleted, and expire: %s", error)
        return 0.0

    def _next_piece(self) -> list[tuple[Any, bytes | None]]:
        piece: list[tuple[Any, bytes | None]] = []
        with suppress(IndexError):
            while len(piece) < PIECE:
                piece.append(self._waiting.popleft())
        return piece

    def _delete(self, piece: list[tuple[Any, bytes | None]]) -> None:
        backend = self._app.backend
        backend.client.unlink(*(key for key, _ in piece))
        for _, value in piece:
            if value is not None:
                forget_payload(backend, backend.decode(value))
