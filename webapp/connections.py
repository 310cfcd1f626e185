"""How connections come to gunicorn's threaded worker and go: no thread waits for either."""

from __future__ import annotations

import selectors
import socket
import time
from functools import partial
from typing import Any

from gunicorn.workers.gthread import DEFAULT_WORKER_DATA_TIMEOUT, ThreadWorker

__all__ = ["PollingWorker"]

#: Seconds for which a process that has accepted a connection leaves the next to others: who
#: comes first to a listener that all share would have a crowd's connections to itself.
_REST = 0.001

#: Seconds for which the most connections at once are remembered.
_LATELY = 1.0

#: Seconds that a client has to close a connection after its last answer.
_PARTING = 2.0

#: Bytes that are read away at once meanwhile.
_PIECE = 65_536


class PollingWorker(ThreadWorker):  # type: ignore[misc]  # it has no types
    """
    gunicorn's threaded worker, whose connections are polled whenever they are idle.

    gunicorn's own has a thread wait for the first bytes of each connection, and the one that
    polls wait for the end of each: a few clients that send nothing, or do not close, would
    hold up everybody.
    """

    def init_process(self) -> None:
        """Begin, in the process that serves."""
        self._shares = self.cfg.workers > 1 and not self.cfg.reuse_port
        self._rests_until = 0.0
        #: Most connections at once, lately: there is a crowd when they become more.
        self._most = 0
        self._forgets_at = 0.0
        super().init_process()

    def serve(self, conn: Any) -> None:
        """
        Have the next request of a connection answered in a thread.

        Args:
            conn: Its client has begun to send.
        """
        super().enqueue_req(conn)

    def enqueue_req(self, conn: Any) -> None:
        """
        Have the next request of a connection answered, once it comes.

        Args:
            conn: New, or one whose client has begun to send.
        """
        if conn.initialized or conn.data_ready:
            self.serve(conn)
            return
        self._poll(
            conn, DEFAULT_WORKER_DATA_TIMEOUT + self.cfg.keepalive, self.on_pending_socket_readable
        )

    def accept(self, listener: Any) -> None:
        """
        Accept one connection, and in a crowd leave the next to other processes for a moment.

        Clients that come one after the other, each with a connection for one request, need not
        be shared out, and would wait for nothing.

        Args:
            listener: Theirs, too, unless each has one of its own.
        """
        before = self.nr_conns
        super().accept(listener)
        now = time.monotonic()
        if self.nr_conns > before and (self.nr_conns > self._most or now > self._forgets_at):
            self._most, self._forgets_at = self.nr_conns, now + _LATELY
            if self._shares:
                self._rests_until = now + _REST
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

    def part(self, conn: Any) -> None:
        """
        Close a connection when its client has done so, too, or has had time for it.

        If it were closed at once, what the client has sent meanwhile would cost it the end of
        its answer, see RFC 9112 section 9.6.

        Args:
            conn: Nothing more is sent on it.
        """
        try:
            conn.sock.settimeout(0)
            conn.sock.shutdown(socket.SHUT_WR)
            self._poll(conn, _PARTING, self._on_parting)
        except (OSError, ValueError):  # it is closed already
            self._forget(conn)

    def _poll(self, conn: Any, seconds: float, readable: Any) -> None:
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(readable, conn))
        conn.timeout = time.monotonic() + seconds
        self.pending_conns.append(conn)

    def _on_parting(self, conn: Any, client: Any) -> None:
        try:
            if client.recv(_PIECE):
                return  # nobody wants it any more
        except BlockingIOError:
            return
        except OSError:
            pass
        self.poller.unregister(client)
        self.pending_conns.remove(conn)
        self._forget(conn)

    def _forget(self, conn: Any) -> None:
        self.nr_conns -= 1
        conn.close()

    def _cap_keepalive(self, deadline: float) -> None:
        """Told to stop, wait no longer for who sends nothing than for those kept alive."""
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)
