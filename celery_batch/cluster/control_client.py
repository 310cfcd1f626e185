"""Celery's remote control for many replies: asks all workers at once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amqp.exceptions import ChannelError

__all__ = ["ControlClient", "impatient_connection"]

#: Seconds without an answer after which the broker counts as away.
_TIMEOUT = 3.0

#: What keeps each transport from waiting for ever.
_TIMEOUTS = {
    "redis": dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _TIMEOUT),
    "amqp": {"read_timeout": _TIMEOUT, "write_timeout": _TIMEOUT},
}


def impatient_connection(app: Any) -> Any:
    """
    Return a connection to the broker that gives up where nobody answers; not connected yet.

    Args:
        app: The Celery app.
    """
    with app.connection_for_write() as connection:  # which connects to nobody either
        timeouts = _TIMEOUTS.get(connection.get_transport_cls().driver_type, {})
    options = {**timeouts, **(app.conf.broker_transport_options or {})}
    return app.connection_for_write(connect_timeout=_TIMEOUT, transport_options=options)


class ControlClient:
    """
    One connection to the broker, for what soon has an answer, or needs none.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._mailbox: Any = None

    def ask(self, command: str, seconds: float) -> dict[str, Any]:
        """
        Return what the workers answer, by their names.

        Args:
            command: Of the control bus, one that answers.
            seconds: How long to listen after the last answer.

        Raises:
            Exception: Whatever a transport raises when the broker is away.
        """
        self._connect()
        answers: dict[str, Any] = {}
        try:
            self._mailbox.multi_call(command, timeout=seconds, callback=answers.update)
        finally:
            self._mailbox.unclaimed.clear()
        return answers

    def tell(self, command: str, **arguments: Any) -> None:
        """
        Tell the workers something, and wait for no answer.

        Args:
            command: Of the control bus.
            arguments: The command's.

        Raises:
            Exception: Whatever a transport raises when the broker is away.
        """
        self._connect()
        self._mailbox.abcast(command, arguments)

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """
        Return how many messages wait in each queue for a worker to read them.

        Args:
            queues: Their names.

        Raises:
            Exception: Whatever a transport raises when the broker is away.
        """
        self._connect()
        return {queue: self._depth(queue) for queue in queues}

    def close(self) -> None:
        """Let go of the broker until the next question."""
        connection, mailbox = self._connection, self._mailbox
        self._connection = self._mailbox = None
        with suppress(Exception):
            # A straggler's reply would otherwise stay in Redis for ever.
            if mailbox is not None and connection.connected:
                connection.default_channel.queue_delete(mailbox.reply_queue.name)
        with suppress(Exception):
            if connection is not None:
                connection.release()

    def _connect(self) -> None:
        if self._connection is None:
            # A connection of its own: from a pool, a broadcast takes two at once.
            self._connection = impatient_connection(self._app)
            self._mailbox = self._app.control.mailbox(self._connection)
            self._mailbox.producer_pool = None
        self._connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)

    def _depth(self, queue: str) -> int:
        with self._connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except (ChannelError, *self._connection.channel_errors):
                return 0  # nobody has sent anything yet, or an empty list, which Redis drops
