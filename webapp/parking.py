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
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, TypeVar

import gunicorn
from gunicorn import util

from webapp.attendant import Attendant
from webapp.connections import PollingWorker
from webapp.hands import Hands
from webapp.messages import Answer
from webapp.turn import Turn

__all__ = ["ParkingWorker"]

T = TypeVar("T")

#: The major version whose threaded worker this one knows from the inside.
_MADE_FOR = 27


class ParkingWorker(PollingWorker):
    """Serves a WSGI app whose doors may park requests."""

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """
        Refuse to serve where that could not go well.

        Args:
            cfg: gunicorn's settings.
            log: Its log.

        Raises:
            RuntimeError: What is to be done about it; gunicorn shows it and ends.
        """
        if gunicorn.version_info[0] != _MADE_FOR:
            raise RuntimeError(
                f"ParkingWorker is made for gunicorn {_MADE_FOR}, of which it takes the inside"
                f" apart, and this is {gunicorn.__version__}: install"
                f" 'gunicorn>={_MADE_FOR},<{_MADE_FOR + 1}', or serve with -k gthread"
            )
        _refuse_greenlets()
        super().check_config(cfg, log)

    def init_process(self) -> None:
        """Begin, in the process that serves."""
        #: Connections whose requests have ended, for the thread that polls them.
        self._ended: deque[tuple[Any, Any]] = deque()
        self._is_told = False
        util.http_date = _once_a_second(util.http_date)
        super().init_process()

    def load_wsgi(self) -> None:
        """Load the app; what else serves begins behind it, since it may refuse to be served so."""
        super().load_wsgi()
        _refuse_greenlets()
        self._attendant = Attendant()

    def get_thread_pool(self) -> Hands:
        """Return what carries requests."""
        return Hands(self.cfg.threads, self._pass_on)

    def run(self) -> None:
        """Serve until told to stop; see gunicorn."""
        try:
            super().run()
        finally:
            self._attendant.close()

    def serve(self, conn: Any) -> None:
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

    def by_hand(self, job: Callable[[], T]) -> Future[T]:
        """
        Have something done by a thread.

        Args:
            job: It may block.
        """
        done: Future[T] = Future()
        self.tpool.give(partial(_do, job, done))
        return done

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
        if isinstance(keeps, Turn) and keeps.making is not None:
            resume = partial(self._resume, conn, keeps)
            self._attendant.take(keeps.making, conn.sock.fileno(), resume)
            return
        self._ended.append((conn, keeps))

    def _pass_on(self) -> None:
        """Tell the loop and the thread that polls what threads have left for them."""
        self._attendant.begin()
        if self._ended and not self._is_told:
            self._is_told = True
            self.method_queue.defer(self._take_back)

    def _take_back(self) -> None:
        self._is_told = False  # first, so that what ends meanwhile is told of again
        while self._ended:
            conn, keeps = self._ended.popleft()
            if keeps:
                self.finish_request(conn, _Said(keeps))
            else:
                self.part(conn)

    def _resume(self, conn: Any, turn: Turn, made: asyncio.Task[Answer]) -> None:
        self.tpool.give(partial(self._carry, conn, partial(self._end, turn, made)))

    def _end(self, turn: Turn, made: asyncio.Task[Answer], conn: Any) -> Any:
        """Do the next part of a request that was parked."""
        try:
            keeps = turn.end(made)
            return turn if keeps is None else self._keepalive_after(conn, keeps)
        except (OSError, StopIteration) as error:
            self.log.debug("Closing connection. %s", error)
        except Exception as error:  # noqa: BLE001 (gunicorn logs it, and answers 500)
            self.handle_error(turn.req, conn.sock, conn.client, error)
        return False


def _refuse_greenlets() -> None:
    """Say so where gevent has replaced threads: the first that waits for all would hold up all."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError(
            "ParkingWorker needs threads, and gevent has put greenlets in their place: leave out"
            " gevent.monkey.patch_all(), or serve with -k gevent"
        )


def _once_a_second(http_date: Callable[[float], str]) -> Callable[[float | None], str]:
    """Return gunicorn's writer of dates, which then writes that of a second once."""
    written = lru_cache(maxsize=8)(http_date)

    def quick(timestamp: float | None = None) -> str:
        return written(int(time.time() if timestamp is None else timestamp))

    return quick


def _do(job: Callable[[], T], done: Future[T]) -> None:
    done.set_running_or_notify_cancel()
    try:
        done.set_result(job())
    except Exception as error:  # noqa: BLE001 (it is for who waits)
        done.set_exception(error)
    finally:
        del job, done  # else the error would hold them, and they the error


class _Said:
    """What a thread has come to, as gunicorn asks a future for it."""

    __slots__ = ("_keeps",)

    def __init__(self, keeps: Any) -> None:
        self._keeps = keeps

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        return self._keeps
