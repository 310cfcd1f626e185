"""
Reads many messages of RabbitMQ in one pass of the event loop.

RabbitMQ pushes as many messages as the prefetch allows; kombu reads each from the socket in
nine reads, and one in a pass of the event loop.  Here all that has arrived is read at once,
and batches leave when all of it has been handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import unpack_from
from typing import Any

from amqp.transport import TCPTransport

from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["read_together"]

logger = logging.getLogger(__name__)

#: Most messages in one pass of the event loop, in which no finished batch is noticed.
_AT_ONCE = 64

#: Bytes that are read at once; what is left of them is copied for each frame.
_READ = 1 << 14

#: Bytes before and after the payload of a frame, and the last byte.
_BEFORE, _AFTER, _END = 7, 1, 0xCE

#: The attributes of py-amqp that are used here.
_CONNECTION, _TRANSPORT = ("drain_events", "on_inbound_frame"), ("_read_buffer", "_quick_recv")


def read_together(connection: Any, scheduler: Scheduler) -> str:
    """
    Let a connection read all that has arrived at once; return why it does not.

    Args:
        connection: Py-amqp's, from which no event loop has read yet.
        scheduler: Where messages go.
    """
    missing = [name for name in _CONNECTION if not hasattr(connection, name)]
    transport = getattr(connection, "transport", None)
    if type(transport) is not TCPTransport:
        return "the connection uses TLS"  # which has its own buffers
    missing += [name for name in _TRANSPORT if not hasattr(transport, name)]
    if missing:
        return f"py-amqp's connection has no {', '.join(missing)}"
    connection.drain_events = _Frames(connection, scheduler).drain_events
    return ""


class _Frames:
    """Parses the frames of a connection."""

    def __init__(self, connection: Any, scheduler: Scheduler) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._scheduler = scheduler
        self._drain_one: Callable[..., Any] = connection.drain_events
        self._is_reading = False

    def drain_events(self, timeout: float | None = None) -> None:
        """
        Handle all frames that have arrived, if an event loop calls; else the next method only.

        Raises:
            TimeoutError: All have been handled.
        """
        if timeout != 0 or self._is_reading:  # a call waits for its reply, perhaps from a handler
            self._drain_one(timeout=timeout)
            return
        self._is_reading = True
        try:
            with self._scheduler.adding_many():
                is_empty = self._handle_some()
        finally:
            self._is_reading = False
        if is_empty:
            raise TimeoutError

    def _handle_some(self) -> bool:
        handled = 0
        while handled < _AT_ONCE:
            frame = self._next()
            if frame is None:
                if not self._receive():
                    return True
            elif self._connection.on_inbound_frame(frame):
                handled += 1
        return False

    def _next(self) -> tuple[int, int, bytes] | None:
        """Take a frame from the buffer; None if there is no complete one."""
        buffer = self._transport._read_buffer  # noqa: SLF001 (from which py-amqp itself goes on)
        if len(buffer) < _BEFORE + _AFTER:
            return None
        kind, channel, size = unpack_from(">BHI", buffer)
        end = _BEFORE + size + _AFTER
        if len(buffer) < end:
            return None
        if buffer[end - 1] != _END:
            return self._transport.read_frame()  # type: ignore[no-any-return] # raises an error
        self._transport._read_buffer = buffer[end:]  # noqa: SLF001
        return kind, channel, buffer[_BEFORE : end - _AFTER]

    def _receive(self) -> bool:
        """Receive more, if more has arrived."""
        transport = self._transport
        try:
            with transport.having_timeout(0):
                data = transport._quick_recv(_READ)  # noqa: SLF001
        except (TimeoutError, BlockingIOError, InterruptedError):
            return False
        except OSError:
            transport.connected = False
            raise
        if not data:
            transport.connected = False
            raise OSError("Server unexpectedly closed connection")
        transport._read_buffer += data  # noqa: SLF001
        return True
