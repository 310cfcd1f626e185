"""Reads how many messages wait in the broker's queues, and whether they are consumed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.compat.kombu import queue_size

__all__ = ["DepthReader", "can_read_depth", "driver_of", "open_depth_reader", "served_key"]

#: Seconds until a broker that does not answer is an error.
_TIMEOUT = 1.0


def served_key(queue: str, task: str) -> str:
    """Return the key in Redis of the workers that serve a task, without the app's key prefix."""
    return f"celery-batch-served.{queue}.{task}"


class _RedisReader:
    """A connection to Redis; its methods raise any error of redis-py if there is no answer."""

    def __init__(self, app: Any) -> None:
        timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _TIMEOUT)
        given = app.conf.broker_transport_options or {}
        options = {**timeouts, **given, "max_connections": None}
        self._connection = app.connection_for_write(transport_options=options)
        _connect(self._connection)
        self._channel = self._connection.default_channel
        self._channel.client.set_retry(Retry(NoBackoff(), 0))
        # Not kombu's own client, which puts the key prefix before some keys only.
        self._plain = Redis(connection_pool=self._channel.pool)
        self._plain.set_retry(Retry(NoBackoff(), 0))

    def count(self, queue: str) -> int:
        """Return how many messages wait in a queue."""
        return queue_size(self._channel, queue)

    def is_served(self, queue: str, task: str) -> bool:
        """Return whether a worker takes a task's messages from a queue."""
        return bool(self._plain.zcard(self._channel.global_keyprefix + served_key(queue, task)))

    def close(self) -> None:
        """Close the connection."""
        self._connection.release()


class _AmqpReader:
    """A connection to RabbitMQ; its methods raise any error of py-amqp if there is no answer."""

    def __init__(self, app: Any) -> None:
        self._connection = app.connection_for_write(connect_timeout=_TIMEOUT, heartbeat=0)
        self._amqp = _connect(self._connection).connection
        self._channel: Any = None

    def count(self, queue: str) -> int:
        """Return how many messages wait in a queue."""
        return self._declared(queue)[0]

    def is_served(self, queue: str, task: str) -> bool:  # noqa: ARG002 (RabbitMQ knows no tasks)
        """Return whether any worker consumes a queue."""
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
        """Close the connection."""
        with suppress(Exception):
            self._amqp.collect()  # an orderly close would wait for the broker
        with suppress(Exception):
            self._connection.release()


def _connect(connection: Any) -> Any:
    """Try each of the broker's addresses once; by default kombu retries for seconds."""
    addresses = max(len(connection.alt), 1)
    return connection.ensure_connection(
        max_retries=addresses - 1, interval_start=0, interval_step=0
    )


DepthReader = _RedisReader | _AmqpReader

_READERS: dict[str, Callable[[Any], DepthReader]] = {"redis": _RedisReader, "amqp": _AmqpReader}


def can_read_depth(app: Any) -> bool:
    """Return whether the number of waiting messages can be read from an app's broker."""
    return driver_of(app) in _READERS


def open_depth_reader(app: Any) -> DepthReader:
    """Connect to an app's broker; raises what its library raises if it cannot be reached."""
    return _READERS[driver_of(app)](app)


def driver_of(app: Any) -> str:
    """Return the kind of an app's broker, such as "redis" or "amqp", without connecting."""
    with app.connection_for_write() as connection:  # which does not connect yet
        return str(connection.get_transport_cls().driver_type)
