"""

Reads many messages of RabbitMQ in one pass of the event loop.

RabbitMQ pushes what the prefetch allows; kombu takes each message out of the socket in
nine reads, and lets the event loop come by before it takes the next.  Here what has
come is read at once, and batches leave when all of it has been looked at.
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

#: Messages in one pass of the event loop, in which no finished batch is noticed.
_SLICE = 64

#: Bytes that are read at once; what is left of them is copied for each frame.
_READ = 1 << 14

#: Bytes before and after what is in a frame, and the last of them.
_BEFORE, _AFTER, _END = 7, 1, 0xCE

#: What we rely on in py-amqp.
_CONNECTION, _TRANSPORT = ("drain_events", "on_inbound_frame"), ("_read_buffer", "_quick_recv")


def read_together(connection: Any, scheduler: Scheduler) -> bool:
    """
    Have a connection read what has come at once, for the rest of its life.

    Args:
        connection: Py-amqp's, which no event loop has read from yet.
        scheduler: Where messages go.

    Returns:
        Whether it does.
    """
    missing = [name for name in _CONNECTION if not hasattr(connection, name)]
    transport = getattr(connection, "transport", None)
    if type(transport) is not TCPTransport:
        return False  # TLS has buffers of its own
    missing += [name for name in _TRANSPORT if not hasattr(transport, name)]
    if missing:
        logger.warning("this py-amqp has no %s: messages are read singly", ", ".join(missing))
        return False
    connection.drain_events = _Frames(connection, scheduler).drain_events
    return True


class _Frames:
    """What a connection has sent, frame by frame."""

    def __init__(self, connection: Any, scheduler: Scheduler) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._scheduler = scheduler
        self._drain_one: Callable[..., Any] = connection.drain_events
        self._is_reading = False

    def drain_events(self, timeout: float | None = None) -> None:
        """
        Handle what has come, if that is asked for by an event loop; else the next method.

        Raises:
            TimeoutError: All of it has been handled.
        """
        if timeout != 0 or self._is_reading:  # somebody waits for an answer, perhaps in our midst
            self._drain_one(timeout=timeout)
            return
        self._is_reading = True
        try:
            with self._scheduler.adding_many():
                is_dry = self._handle_some()
        finally:
            self._is_reading = False
        if is_dry:
            raise TimeoutError

    def _handle_some(self) -> bool:
        handled = 0
        while handled < _SLICE:
            frame = self._next()
            if frame is None:
                if not self._receive():
                    return True
            elif self._connection.on_inbound_frame(frame):
                handled += 1
        return False

    def _next(self) -> tuple[int, int, bytes] | None:
        """Take a frame out of what was received; None if there is no whole one."""
        buffer = self._transport._read_buffer  # noqa: SLF001 (where py-amqp would go on reading)
        if len(buffer) < _BEFORE + _AFTER:
            return None
        kind, channel, size = unpack_from(">BHI", buffer)
        end = _BEFORE + size + _AFTER
        if len(buffer) < end:
            return None
        if buffer[end - 1] != _END:
            return self._transport.read_frame()  # type: ignore[no-any-return] # and says so
        self._transport._read_buffer = buffer[end:]  # noqa: SLF001
        return kind, channel, buffer[_BEFORE : end - _AFTER]

    def _receive(self) -> bool:
        """Receive more, if more has come."""
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
