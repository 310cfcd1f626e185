"""
Revokes many calls in one message.

A stock worker that receives a revoke asks the result store about each task, so the ids of
a burst are sent in pieces.  A header tells our workers to skip that.
"""

from __future__ import annotations

import atexit

# redis imports this with its first use, which is too late while the interpreter ends.
import concurrent.futures.thread  # noqa: F401
import logging
import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

from celery_batch.client.background import OnDemandThread
from celery_batch.processes.per_process import PerProcess
from celery_batch.protocol import QUIETLY

__all__ = ["MOST", "PIECE", "Revokes", "revoke_soon"]

logger = logging.getLogger(__name__)

#: Seconds for which ids are collected.
GATHER = 0.01

#: Most ids in one broadcast; with each a stock worker is busy for half a millisecond.
PIECE = 200

#: Most ids that wait to be sent; of more the oldest are dropped.  It is as many as a worker
#: remembers.
MOST = 50_000

#: Seconds from a broadcast that has failed to its second try.
RETRY_PAUSE = 1.0

#: Most seconds that the end of the process waits for what is still to be sent.
_AT_EXIT = 2.0


def revoke_soon(app: Any, task_ids: Iterable[str]) -> None:
    """
    Revoke tasks that wait in queues soon, from any thread, coroutine or callback.

    All ids that are given at about the same time go to the workers in one broadcast, Celery's
    own.  A broadcast that fails is tried again after a second.  If it fails again, all ids that
    wait are dropped; use `BatchResult.revoke` if you need to know.

    Args:
        app: The Celery app.
        task_ids: Their ids.
    """
    Revokes.of(app).add(task_ids)


class Revokes(PerProcess):
    """The ids of one app that this process is about to revoke."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._waiting: deque[str] = deque(maxlen=MOST)
        self._thread = OnDemandThread("celery-batch-revokes", self._send_some)
        self._is_sending = False
        self._is_failing = False
        _all.add(self)

    def add(self, task_ids: Iterable[str]) -> None:
        """Have tasks revoked soon."""
        self._waiting.extend(task_ids)
        if self._waiting:
            with suppress(RuntimeError):  # the interpreter is ending
                self._thread.wake()

    def flush(self, timeout: float) -> bool:
        """Return whether all is sent within some seconds."""
        end = time.monotonic() + timeout
        while self._waiting or self._is_sending:
            if time.monotonic() > end or not self._thread.is_alive:
                return False
            time.sleep(GATHER / 2)
        return True

    def _send_some(self) -> float | None:
        if not self._waiting:
            return None
        time.sleep(GATHER)
        self._is_sending = True  # before they are taken: see `flush`
        try:
            self._send(self._next_piece())
        finally:
            self._is_sending = False
        return 0.0

    def _next_piece(self) -> list[str]:
        piece: list[str] = []
        with suppress(IndexError):
            while len(piece) < PIECE:
                piece.append(self._waiting.popleft())
        return piece

    def _connection(self) -> AbstractContextManager[Any]:
        """Return a new one if the pool has only one: without `prepare`, a broadcast takes two."""
        is_one = self._app.conf.broker_pool_limit == 1
        return self._app.connection_for_write() if is_one else nullcontext()

    def _send(self, task_ids: list[str]) -> None:
        if not task_ids:
            return
        try:
            try:
                self._broadcast(task_ids)
            except Exception:  # noqa: BLE001 (whatever it is, it may be over soon)
                time.sleep(RETRY_PAUSE)
                self._broadcast(task_ids)
        except Exception as error:  # noqa: BLE001 (whatever it is, no caller waits for this)
            self._waiting.clear()
            is_closed = isinstance(error, RuntimeError)  # the pool: its program is ending
            if not (self._is_failing or is_closed):
                logger.warning("Cannot revoke abandoned calls: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _broadcast(self, task_ids: list[str]) -> None:
        with self._connection() as connection:
            self._app.control.revoke(task_ids, connection=connection, **{QUIETLY: True})


_all: WeakSet[Revokes] = WeakSet()


def _flush_all() -> None:
    end = time.monotonic() + _AT_EXIT
    for each in list(_all):
        if each.pid == os.getpid():
            each.flush(max(end - time.monotonic(), 0.0))


atexit.register(_flush_all)
