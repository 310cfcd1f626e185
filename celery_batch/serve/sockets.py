"""The sockets on which the web server of a served handle listens."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

__all__ = ["listening"]

#: Connections that wait to be accepted, as uvicorn has it by default.
_BACKLOG = 2048

#: Errors of a bind to an address that this machine does not have, as with IPv6 switched off.
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listening(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host: ``localhost`` may have two."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing: OSError | None = None
    with ExitStack() as opened:
        sockets = []
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                listener = socket.create_server(
                    address, family=family, backlog=_BACKLOG, reuse_port=reuse_port
                )
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
            else:
                sockets.append(opened.enter_context(listener))
        if missing is not None and not sockets:
            raise missing
        opened.pop_all()
    return sockets
