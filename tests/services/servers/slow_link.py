"""A slow link to a server: a proxy that passes a client's bytes on at a limited rate."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

__all__ = ["slow_link"]

#: Bytes that are passed on at a time, and that the system keeps for the proxy.
_PIECE, _BUFFER = 1 << 16, 1 << 18

#: Seconds that it catches up with at most.
_BEHIND = 0.1


@contextmanager
def slow_link(server: int | Path, rate: float = inf, delay: float = 0.0) -> Iterator[int]:
    """
    Return the port of a slow way to a server on this machine.

    Args:
        server: Its port, or its unix socket.
        rate: Bytes a second from each client to the server; back they go at any rate.
        delay: Seconds that each piece takes on its way back.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    threading.Thread(target=_accept, args=(listener, server, rate, delay), daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, address: int | Path, rate: float, delay: float) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = _connect(address)
            for ends in ((client, server, rate, 0.0), (server, client, inf, delay)):
                threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _connect(address: int | Path) -> socket.socket:
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    return connection


def _pass_on(source: socket.socket, target: socket.socket, rate: float, delay: float) -> None:
    due = 0.0
    with suppress(OSError), source:
        while piece := source.recv(_PIECE):
            # Also on a busy machine, which wakes this thread late, the link is as fast.
            due = max(due, time.monotonic() - _BEHIND) + len(piece) / rate
            time.sleep(delay)
            target.sendall(piece)
            time.sleep(max(due - time.monotonic(), 0.0))
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
