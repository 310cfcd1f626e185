"""

Breaks off waiting for a Redis that does not answer, when the worker shuts down.

Kombu waits for an answer without limit.  A Redis that is frozen keeps its connections open, so
a worker that is told to stop would wait in the middle of its last commands.  Whoever notices
the silence on another thread breaks these connections off; what the worker holds goes to
others when its lease is over.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from redis.connection import AbstractConnection

__all__ = ["answers_again", "break_off", "keep_track"]

logger = logging.getLogger(__name__)

#: The connections of this process, of whichever Redis.
_connections: WeakSet[Any] = WeakSet()


@dataclass(slots=True)
class _Silence:
    """A Redis that does not answer: where it is, and the thread that asks it all the same."""

    address: tuple[Any, ...]
    asker: threading.Thread
    before_refusal: Callable[[], object]


#: One at most.
_silences: list[_Silence] = []


def keep_track() -> None:
    """Take note of each Redis connection that this process makes from now on."""
    connect = AbstractConnection.connect_check_health
    if getattr(connect, "__module__", None) == __name__:
        return

    def connect_unless_silent(self: Any, *args: Any, **kwargs: Any) -> Any:
        for silence in _silences:
            _refuse(silence, self)
        _connections.add(self)
        return connect(self, *args, **kwargs)

    AbstractConnection.connect_check_health = connect_unless_silent  # type: ignore[method-assign]


def _refuse(silence: _Silence, connection: Any) -> None:
    is_silent = _address(vars(connection)) == silence.address
    if is_silent and threading.current_thread() is not silence.asker:
        silence.before_refusal()
        # Not Redis' own error, which is tried again.
        raise ConnectionAbortedError("Redis does not answer, and this worker shuts down")


def break_off(client: Any, before_refusal: Callable[[], object]) -> None:
    """
    Break the connections to a Redis off, and make none until it answers; call it again at will.

    Args:
        client: Of that Redis, used by the calling thread, which may go on connecting.
        before_refusal: Called whenever a connection is about to be refused; may raise an error
            of its own instead.
    """
    address = _address(client.connection_pool.connection_kwargs)
    if not _silences:
        logger.warning("Redis does not answer, and this worker shuts down: it waits no longer")
        _silences.append(_Silence(address, threading.current_thread(), before_refusal))
    for connection in _made():
        # Its reader closes it: that may be in the middle of an answer.
        open_socket = getattr(connection, "_sock", None)
        if open_socket is not None and _address(vars(connection)) == address:
            with suppress(OSError):  # closed meanwhile
                open_socket.shutdown(socket.SHUT_RDWR)


def _made() -> list[Any]:
    # No lock: a fork may copy it, held.
    while True:
        try:
            return list(_connections)
        except RuntimeError:  # another one was made meanwhile
            continue


def answers_again() -> None:
    """Let connections be made again."""
    _silences.clear()


def _address(options: Any) -> tuple[Any, ...]:
    return tuple(options.get(name) for name in ("path", "host", "port"))
