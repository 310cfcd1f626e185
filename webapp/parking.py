"""
gunicorn's threaded worker, in which a request that waits has no thread:
``gunicorn -k webapp.parking.ParkingWorker``.

Threads read requests, ask the app and send answers, as in gunicorn's own.  But a door may
return a `webapp.parked.Parked`: then its answer is made on an event loop, and a thousand
clients wait for a model without a thousand threads, which would take turns with one
interpreter and cost more than all the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from webapp.attendant import Attendant
from webapp.hands import Hands
from webapp.messages import Answer
from webapp.turn import Turn

__all__ = ["ParkingWorker"]

#: Seconds for which a process that has accepted a connection leaves the next to others: who
#: comes first to a listener that all share would have a crowd's connections to itself.
_REST = 0.001


class ParkingWorker(ThreadWorker):  # type: ignore[misc]  # it has no types
    """Serves a WSGI app whose doors may park requests."""

    def init_process(self) -> None:
        """Begin, in the process that serves."""
        self._attendant = Attendant()
        self._rests_until = 0.0
        #: Connections whose requests have ended, for the thread that polls them.
        self._ended: deque[tuple[Any, _Said]] = deque()
        self._is_told = False
        super().init_process()

    def get_thread_pool(self) -> Hands:
        """Return what carries requests."""
        return Hands(self.cfg.threads)

    def run(self) -> None:
        """Serve until told to stop; see gunicorn."""
        try:
            super().run()
        finally:
            self._attendant.close()

    def enqueue_req(self, conn: Any) -> None:
        """
        Have the next request of a connection answered.

        Args:
            conn: Its first bytes are there.
        """
        self.tpool.give(partial(self._carry, conn, self.handle))

    def handle_request(self, req: Any, conn: Any) -> Any:
        """
        Answer a request.

        Args:
            req: The request.
            conn: Its connection.

        Returns:
            Whether the connection may have another one, or the turn of a request that waits.
        """
        self.cfg.pre_request(self, req)
        turn = Turn(self, req, conn, is_last=self._is_last())
        keeps = turn.begin()
        return turn if keeps is None else keeps

    def accept(self, listener: Any) -> None:
        """
        Accept one connection, and leave the next to other processes for a moment.

        Args:
            listener: Theirs, too.
        """
        super().accept(listener)
        if self.cfg.workers > 1:
            self._rests_until = time.monotonic() + _REST
            self.set_accept_enabled(False)

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001 (as gunicorn calls it)
        """
        Begin or cease to accept connections.

        Args:
            enabled: Whether to; not in a rest.
        """
        if not (enabled and time.monotonic() < self._rests_until):
            super().set_accept_enabled(enabled)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """
        Do what connections and threads ask for.

        Args:
            timeout: Seconds; less where the end of a rest comes first.
        """
        rest = self._rests_until - time.monotonic()
        super().wait_for_and_dispatch_events(min(timeout, rest) if rest > 0 else timeout)

    def _is_last(self) -> bool:
        """Count a request; say whether its connection ends with it."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive: bool = False
        is_full = len(self.keepalived_conns) >= self.max_keepalived
        return not self.alive or not self.cfg.keepalive or is_full

    def _keepalive_after(self, conn: Any, keepalive: Any) -> Any:
        if isinstance(keepalive, Turn):
            return keepalive  # it will be asked when that is over
        return super()._keepalive_after(conn, keepalive)

    def _carry(self, conn: Any, handle: Callable[[Any], Any]) -> None:
        """Go one piece of the way of a connection's request."""
        try:
            keeps = handle(conn)
        except BaseException:  # whatever it is, the client is not to wait for ever
            self.log.exception("Error handling a connection")
            keeps = False
        if isinstance(keeps, Turn) and keeps.parked is not None:
            resume = partial(self._resume, conn, keeps)
            self._attendant.take(keeps.parked, conn.sock.fileno(), resume)
            return
        self._ended.append((conn, _Said(keeps)))
        if not self._is_told:
            self._is_told = True
            self.method_queue.defer(self._take_back)

    def _take_back(self) -> None:
        self._is_told = False  # first, so that what ends meanwhile is told of again
        while self._ended:
            self.finish_request(*self._ended.popleft())

    def _resume(self, conn: Any, turn: Turn, made: asyncio.Task[Answer]) -> None:
        self.tpool.give(partial(self._carry, conn, partial(self._end, turn, made)))

    def _end(self, turn: Turn, made: asyncio.Task[Answer], conn: Any) -> Any:
        """Do the second half of a request that was parked."""
        try:
            return self._keepalive_after(conn, turn.end(made))
        except (OSError, StopIteration) as error:
            self.log.debug("Closing connection. %s", error)
        except Exception as error:  # noqa: BLE001 (gunicorn logs it, and answers 500)
            self.handle_error(turn.req, conn.sock, conn.client, error)
        return False


class _Said:
    """What a thread has come to, as gunicorn asks a future for it."""

    __slots__ = ("_keeps",)

    def __init__(self, keeps: Any) -> None:
        self._keeps = keeps

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._keeps
