"""A slow link to a server: a proxy that passes a client's bytes on at a limited rate."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["slow_link"]

#: Bytes that are passed on at a time, and that the system keeps for the proxy.
_PIECE, _BUFFER = 1 << 16, 1 << 18


@contextmanager
def slow_link(port: int, rate: float) -> Iterator[int]:
    """
    Return the port of a slow way to a server on this machine.

    Args:
        port: The server's.
        rate: Bytes a second from each client to the server; back they go at once.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    threading.Thread(target=_accept, args=(listener, port, rate), daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, port: int, rate: float) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for ends in ((client, server, rate), (server, client, None)):
                threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, rate: float | None) -> None:
    with suppress(OSError), source:
        while piece := source.recv(_PIECE):
            target.sendall(piece)
            if rate is not None:
                time.sleep(len(piece) / rate)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
