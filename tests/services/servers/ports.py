"""Ports for servers that start a while after their port was chosen."""

from __future__ import annotations

import random
import socket
import sys

__all__ = ["quiet_port"]

#: Below those that Linux gives to clients by itself: there a port that was free a moment ago may
#: be some connection's by now.
_FIRST, _LAST = 20_000, 32_000

#: What keeps each port that was given from other processes of the tests, until this one ends.
_given: dict[int, socket.socket] = {}


def quiet_port() -> int:
    """Return a port of 127.0.0.1 that is free, and likely to stay free until it is used."""
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with socket.socket() as probe:
            if port not in _given and _binds(probe, ("127.0.0.1", port)) and _is_ours(port):
                return port


def _is_ours(port: int) -> bool:
    """
    Say whether no other process of the tests has the port, and keep it from them.

    A port at which no server is to be looks free to them, as does that of one that is starting.
    """
    if sys.platform != "linux":
        return True
    claim = _given[port] = socket.socket(socket.AF_UNIX)
    if _binds(claim, f"\0celery-batch-tests-port-{port}"):
        return True
    _given.pop(port).close()
    return False


def _binds(probe: socket.socket, address: tuple[str, int] | str) -> bool:
    try:
        probe.bind(address)
    except OSError:
        return False
    return True
