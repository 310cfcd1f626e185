"""Reads how many messages wait in the broker's queues, and who consumes them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["DepthReader", "can_read_depth", "driver_of", "open_depth_reader", "served_key"]

#: Seconds without an answer after which a look is given up.
_TIMEOUT = 1.0


def served_key(queue: str, task: str) -> str:
    """
    Return the key in Redis of those who serve a task, without the app's prefix.

    Args:
        queue: The name of the queue from which they take it.
        task: The task's name.
    """
    return f"celery-batch-served.{queue}.{task}"


class DepthReader(Protocol):
    """A connection to a broker that can say how many messages wait."""

    def count(self, queue: str) -> int:
        """
        Return how many messages wait in a queue.

        Args:
            queue: Its name.

        Raises:
            Exception: Whatever the broker's library raises when there is no answer.
        """

    def is_served(self, queue: str, task: str) -> bool:
        """
        Return whether a worker takes a task's messages from a queue.

        Args:
            queue: Its name.
            task: The task's; RabbitMQ knows no tasks, and tells of the queue alone.

        Raises:
            Exception: Whatever the broker's library raises when there is no answer.
        """

    def close(self) -> None:
        """Let go of the connection."""


class _RedisLook:
    def __init__(self, app: Any) -> None:
        timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _TIMEOUT)
        given = app.conf.broker_transport_options or {}
        options = {**timeouts, **given, "max_connections": None}
        self._connection = app.connection_for_write(transport_options=options)
        _connect(self._connection)
        self._channel = self._connection.default_channel
        self._channel.client.set_retry(Retry(NoBackoff(), 0))
        # Past kombu's own client, which puts the key prefix before some keys only.
        self._plain = Redis(connection_pool=self._channel.pool)
        self._plain.set_retry(Retry(NoBackoff(), 0))

    def count(self, queue: str) -> int:
        return int(self._channel._size(queue))  # noqa: SLF001 (of all its priorities' lists)

    def is_served(self, queue: str, task: str) -> bool:
        return bool(self._plain.zcard(self._channel.global_keyprefix + served_key(queue, task)))

    def close(self) -> None:
        self._connection.release()


class _AmqpLook:
    def __init__(self, app: Any) -> None:
        self._connection = app.connection_for_write(connect_timeout=_TIMEOUT, heartbeat=0)
        self._amqp = _connect(self._connection).connection
        self._channel: Any = None

    def count(self, queue: str) -> int:
        return self._declared(queue)[0]

    def is_served(self, queue: str, task: str) -> bool:  # noqa: ARG002 (RabbitMQ knows no tasks)
        return bool(self._declared(queue)[1])

    def _declared(self, queue: str) -> tuple[int, int]:
        """Return how many messages wait in a queue, and how many consume it."""
        with self._amqp.transport.having_timeout(_TIMEOUT):
            if self._channel is None or self._channel.connection is None:
                self._channel = self._connection.channel()
            try:
                found = self._channel.queue_declare(queue, passive=True)
            except self._connection.channel_errors:
                return 0, 0  # there is no such queue yet
            return int(found.message_count), int(found.consumer_count)

    def close(self) -> None:
        with suppress(Exception):
            self._amqp.collect()  # to close it in form would be to wait
        with suppress(Exception):
            self._connection.release()


def _connect(connection: Any) -> Any:
    """Try each of the broker's addresses once; kombu tries again for seconds if left alone."""
    addresses = max(len(connection.alt), 1)
    return connection.ensure_connection(
        max_retries=addresses - 1, interval_start=0, interval_step=0
    )


_LOOKS: dict[str, type[DepthReader]] = {"redis": _RedisLook, "amqp": _AmqpLook}


def can_read_depth(app: Any) -> bool:
    """
    Return whether an app's broker can say how many messages wait.

    Args:
        app: The Celery app.
    """
    return driver_of(app) in _LOOKS


def open_depth_reader(app: Any) -> DepthReader:
    """
    Connect to an app's broker.

    Args:
        app: The Celery app.

    Raises:
        Exception: Whatever the broker's library raises when it cannot be reached.
    """
    make: Any = _LOOKS[driver_of(app)]
    look: DepthReader = make(app)
    return look


def driver_of(app: Any) -> str:
    """
    Return the kind of an app's broker, "redis" or "amqp" for example; it is not connected to.

    Args:
        app: The Celery app.
    """
    with app.connection_for_write() as connection:  # which connects to nobody yet
        return str(connection.get_transport_cls().driver_type)
