"""

Revokes many calls in one message.

A stock worker that hears of a revoke asks the result store about each task, so what is
called back in a burst comes to it in pieces.  Ours is told to spare itself that.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

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

#: Seconds after which the thread ends for want of work.
_IDLE = 5.0

#: Most seconds that the end of the process waits for what is still to be sent.
_AT_EXIT = 2.0


def revoke_soon(app: Any, task_ids: Iterable[str]) -> None:
    """
    Have tasks revoked that wait in queues, from any thread, coroutine or callback.

    All that are called back at about the same time go to the workers in one broadcast,
    Celery's own.  It is a courtesy and no promise: while the broker is away they are
    dropped, and `BatchResult.revoke` is for those who need to know.

    Args:
        app: The Celery app.
        task_ids: Their ids.
    """
    Revokes.of(app).add(task_ids)


class Revokes:
    """
    One app's revokes in this process.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app
        self._waiting: deque[str] = deque(maxlen=MOST)
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        #: Free when rung, as a signal's handler may ring, too.
        self._waker = threading.Lock()
        self._waker.acquire()
        self._is_sending = False
        self._is_failing = False

    @classmethod
    def of(cls, app: Any) -> Revokes:
        """Return the app's revokes in this process; a fork has its own."""
        found: Revokes | None = app.__dict__.get("batch_revokes")
        if found is None or found.pid != os.getpid():
            found = app.__dict__["batch_revokes"] = cls(app)
            _all.add(found)
        return found

    def add(self, task_ids: Iterable[str]) -> None:
        """
        Have tasks revoked soon.

        Args:
            task_ids: Their ids.
        """
        self._waiting.extend(task_ids)
        if not self._waiting:
            return
        with suppress(RuntimeError):  # rung already
            self._waker.release()
        if self._thread is None or not self._thread.is_alive():
            self._start()

    def flush(self, timeout: float) -> bool:
        """
        Return whether all is sent, waiting for it.

        Args:
            timeout: Most seconds to wait.
        """
        end = time.monotonic() + timeout
        while self._waiting or self._is_sending:
            if time.monotonic() > end or self._thread is None or not self._thread.is_alive():
                return False
            time.sleep(GATHER / 2)
        return True

    def _start(self) -> None:
        if not self._guard.acquire(blocking=False):
            return  # somebody does
        try:
            if self._thread is None or not self._thread.is_alive():
                name = "celery-batch-revokes"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending
                    self._thread.start()
        finally:
            self._guard.release()

    def _run(self) -> None:
        while True:
            while self._waiting or self._waker.acquire(timeout=_IDLE):
                self._send_some()
            self._thread = None  # who adds now starts another
            if not self._waiting:  # else somebody added who has seen us alive
                return
            self._thread = threading.current_thread()

    def _send_some(self) -> None:
        time.sleep(GATHER)
        self._is_sending = True  # before they are taken: see `flush`
        try:
            self._send(self._next_piece())
        finally:
            self._is_sending = False

    def _next_piece(self) -> list[str]:
        piece: list[str] = []
        with suppress(IndexError):
            while len(piece) < PIECE:
                piece.append(self._waiting.popleft())
        return piece

    def _connection(self) -> AbstractContextManager[Any]:
        """Return a new connection where the pool has one only, of which a broadcast takes two."""
        is_one = self._app.conf.broker_pool_limit == 1
        return self._app.connection_for_write() if is_one else nullcontext()

    def _send(self, task_ids: list[str]) -> None:
        if not task_ids:
            return
        try:
            with self._connection() as connection:
                self._app.control.revoke(task_ids, connection=connection, **{QUIETLY: True})
        except Exception as error:  # noqa: BLE001 (whatever it is, nobody waits for this)
            self._waiting.clear()
            if not self._is_failing:
                logger.warning("Cannot revoke what nobody waits for any more: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False


_all: WeakSet[Revokes] = WeakSet()


def _flush_all() -> None:
    end = time.monotonic() + _AT_EXIT
    for each in [each for each in list(_all) if each.pid == os.getpid()]:
        each.flush(max(end - time.monotonic(), 0.0))


atexit.register(_flush_all)
