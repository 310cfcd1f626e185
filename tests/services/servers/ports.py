"""Ports for servers that start a while after their port was chosen."""

from __future__ import annotations

import random
import socket

__all__ = ["quiet_port"]

#: Below those that Linux gives to clients by itself: there a port that was free a moment ago may
#: be some connection's by now.
_FIRST, _LAST = 20_000, 32_000

_given: set[int] = set()


def quiet_port() -> int:
    """Return a port of 127.0.0.1 that is free, and likely to stay free until it is used."""
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with socket.socket() as probe:
            if port in _given or not _binds(probe, port):
                continue
            _given.add(port)
            return port


def _binds(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
