"""
Reads many messages of RabbitMQ in one pass of the event loop.

RabbitMQ pushes as many messages as the prefetch allows; kombu reads each from the socket in
nine reads, and one in a pass of the event loop.  Here all that has arrived is read at once,
and batches leave when all of it has been handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery_batch.compat.amqp import FrameBuffer, missing_for_frames
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["read_together"]

logger = logging.getLogger(__name__)

#: Most messages in one pass of the event loop, in which no finished batch is noticed.
_AT_ONCE = 64


def read_together(connection: Any, scheduler: Scheduler) -> str:
    """Let a connection of py-amqp's read all that has arrived at once; return why it does not."""
    if missing := missing_for_frames(connection):
        return missing
    connection.drain_events = _Frames(connection, scheduler).drain_events
    return ""


class _Frames:
    """Handles the frames of a connection."""

    def __init__(self, connection: Any, scheduler: Scheduler) -> None:
        self._connection = connection
        self._buffer = FrameBuffer(connection.transport)
        self._scheduler = scheduler
        self._drain_one: Callable[..., Any] = connection.drain_events
        self._is_reading = False

    def drain_events(self, timeout: float | None = None) -> None:
        """Handle all frames that have arrived, for an event loop; else the next method only."""
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
        handled, next_frame = 0, self._buffer.next_frame
        while handled < _AT_ONCE:
            frame = next_frame()
            if frame is None:
                if not self._buffer.receive():
                    return True
            elif self._connection.on_inbound_frame(frame):
                handled += 1
        return False
