"""Writes many messages at once, on the connections of Celery's own producers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from struct import pack
from time import monotonic
from typing import Any

from amqp import spec
from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from vine import promise

from celery_batch.client.publish.amqp_message import AmqpMessage
from celery_batch.client.publish.buffer import PreparedMessage, by_key, last_deadline

__all__ = [
    "AmqpTransport",
    "RedisTransport",
    "Transport",
]


#: Bytes for which the connection's time-out holds: a socket's is one for all that it is given,
#: so a large message on a slow link would exceed it however steadily it goes.
_REDIS_PIECE = 1 << 17


#: Bytes in the system's buffers for each of which, once written, the answer may take the
#: time-out once more; and most bytes there.
_STEP, _BUFFERED = 1 << 20, 1 << 22


_LATE = "the broker has not taken the calls in time"


class RedisTransport:
    """
    Writes letters to the broker's lists.

    Celery's settings hold as for single messages: the pool of connections, how often
    and how long publishing is tried again, and which errors say that it failed.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._channel: Any = None

    def write(self, prepared_messages: list[PreparedMessage], producer: Any = None) -> None:
        """
        Put the letters in their lists, and mark those that are there.

        Args:
            prepared_messages: To be sent.
            producer: Celery's, to send them with; one of the app's unless given.

        Raises:
            OperationalError: The broker could not be reached, or refused them.
            TimeoutError: It has not taken them by the last of their deadlines.
        """
        channel = self._channel if producer is None else None
        if channel is not None and not channel.closed:
            try:
                _push_redis(channel, prepared_messages)
            except RedisError as error:
                is_late = last_deadline(prepared_messages) <= monotonic()
                if is_late or not self._app.conf.task_publish_retry:
                    raise OperationalError(str(error)) from error
            else:
                return
        self._write_as_celery_does(prepared_messages, producer)

    def _write_as_celery_does(
        self, prepared_messages: list[PreparedMessage], producer: Any
    ) -> None:
        app = self._app
        policy = dict(app.conf.task_publish_retry_policy)
        with app.producer_or_acquire(producer) as own:
            connection = own.connection
            push = _push_through
            if app.conf.task_publish_retry:
                connection.transport_options.update(policy)
                push = connection.ensure(own, push, **policy)
            with connection._reraise_as_library_errors():  # noqa: SLF001
                push(own, prepared_messages)
                self._channel = own.channel


def _push_through(producer: Any, prepared_messages: list[PreparedMessage]) -> None:
    _push_redis(producer.channel, prepared_messages)


def _push_redis(channel: Any, prepared_messages: list[PreparedMessage]) -> None:
    """Send one LPUSH for each list and read the answers; leave out what is there already."""
    lists = by_key(prepared for prepared in prepared_messages if not prepared.sent)
    pool, refused = channel.pool, None
    until = last_deadline(prepared_messages)
    connection = pool.get_connection()
    try:
        commands = b"".join(_packed(*each) for each in lists.items())
        _send(connection, commands, until)
        for bundle in lists.values():
            _await_answer(connection, until, len(commands))
            try:
                connection.read_response()
            except ResponseError as error:
                refused = refused or error
                continue
            for prepared in bundle:
                prepared.sent = True
    except BaseException:
        connection.disconnect()  # what is still to be read on it is nobody else's answer
        raise
    finally:
        pool.release(connection)
    if refused is not None:
        raise refused


def _send(connection: Any, commands: bytes, until: float) -> None:
    """Write commands; each piece of them has the connection's time-out."""
    connection.send_packed_command([commands[:_REDIS_PIECE]])
    rest = memoryview(commands)[_REDIS_PIECE:]
    for start in range(0, len(rest), _REDIS_PIECE):
        if monotonic() >= until:
            raise TimeoutError(_LATE)
        connection.send_packed_command([rest[start : start + _REDIS_PIECE]], check_health=False)


def _await_answer(connection: Any, until: float, size: int) -> None:
    """Wait for an answer where the connection's own time-out is not the one that holds."""
    if until == math.inf and size < _STEP:
        return
    left = max(until - monotonic(), 0.0)
    patience = connection.socket_timeout
    if patience is None:
        patience = math.inf
    elif size >= _STEP:
        patience *= 1 + min(size, _BUFFERED) // _STEP
    elif left >= patience:
        return
    soonest = min(left, patience)
    if soonest < math.inf and not connection.can_read(soonest):
        raise TimeoutError(_LATE) if left <= patience else RedisTimeoutError(_LATE)


def _packed(key: str, prepared_messages: list[PreparedMessage]) -> bytes:
    """Return an LPUSH as it goes over the wire."""
    words = [b"LPUSH", key.encode(), *map(_encoded, prepared_messages)]
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%b\r\n" % (len(word), word) for word in words
    )


def _encoded(prepared: PreparedMessage) -> bytes:
    return prepared.text.encode() if isinstance(prepared.text, str) else prepared.text


#: Bytes that are written at once.  Should the connection break meanwhile, these letters are
#: written again: the fewer they are, the fewer arrive twice.
_PIECE = 1 << 18


#: Seconds after which a broker that takes nothing, as when it is short of memory, is given up.
_TIMEOUT = 60.0


#: Seconds for which it is waited for at least, also where the senders' time is over.
_LEAST = 0.001


#: What ends a frame, and the bytes that a frame has beside what is in it.
_END, _AROUND = b"\xce", 8


class AmqpTransport:
    """
    Writes letters to RabbitMQ, without confirms.

    Celery's settings hold as for single messages: the pool of connections, how often
    and how long publishing is tried again, and which errors say that it failed.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    def write(self, prepared_messages: list[AmqpMessage], producer: Any = None) -> None:
        """
        Send the letters, and mark those that are sent.

        Args:
            prepared_messages: To be sent.
            producer: Celery's, to send them with; one of the app's unless given.

        Raises:
            OperationalError: The broker could not be reached.
        """
        conf = self._app.conf
        with self._app.producer_or_acquire(producer) as own:
            connection, push = own.connection, _push
            if conf.task_publish_retry:
                policy = dict(conf.task_publish_retry_policy)
                connection.transport_options.update(policy)
                push = connection.ensure(own, push, **policy)
            with connection._reraise_as_library_errors():  # noqa: SLF001
                push(own, prepared_messages)


def _push(producer: Any, prepared_messages: list[AmqpMessage]) -> None:
    left = [prepared for prepared in prepared_messages if not prepared.sent]
    patience = max(min(_TIMEOUT, last_deadline(left) - monotonic()), _LEAST)
    for template in {id(prepared.template): prepared.template for prepared in left}.values():
        for entity in template.declare:
            producer.maybe_declare(entity)
    channel = producer.channel
    connection = channel.connection
    if connection is None:
        raise RecoverableConnectionError("connection already closed")
    _receive(connection)
    for piece in _pieces(left):
        frames = [
            frame
            for prepared in piece
            for frame in _frames(prepared, channel.channel_id, connection.frame_max - _AROUND)
        ]
        try:
            with connection.transport.having_timeout(patience):
                connection.transport.write(b"".join(frames))
            connection.bytes_sent += len(piece)  # which counts messages, for the heartbeat
            if len(left) > 1 or left[0].is_gathered:
                _await_receipt(channel, patience)
        except TimeoutError as error:
            connection.collect()  # to close it in form would be to wait for the broker again
            text = f"the broker has taken nothing for {patience:.2g} seconds"
            raise OperationalError(text) from error
        for prepared in piece:
            prepared.sent = True


def _receive(connection: Any) -> None:
    """Hear what the broker has said meanwhile, as py-amqp does before it publishes."""
    if connection.client_properties.get("capabilities", {}).get("connection.blocked"):
        try:
            connection.drain_events(timeout=0)
        except TimeoutError:
            return


def _await_receipt(channel: Any, patience: float) -> None:
    """
    Return when the broker has read all that was written on a channel.

    Many letters may still be on their way, and are lost if this process ends and cuts the
    connection.  The broker reads a channel in order, and answers here that there is no limit
    to the messages that nobody reads on this one.

    Raises:
        TimeoutError: It has not.
    """
    heard = channel._pending[spec.Basic.QosOk] = promise()  # noqa: SLF001 (as py-amqp's `wait`)
    channel.send_method(spec.Basic.Qos, "lBb", (0, 0, False))
    due = monotonic() + patience
    while not heard.ready:
        connection, left = channel.connection, due - monotonic()
        if connection is None:
            raise RecoverableConnectionError("connection already closed")
        if left <= 0:
            raise TimeoutError
        connection.blocking_read(left)  # heartbeats, too, and they are no answer


def _pieces(prepared_messages: Iterable[AmqpMessage]) -> Iterator[list[AmqpMessage]]:
    piece: list[AmqpMessage] = []
    size = 0
    for prepared in prepared_messages:
        piece.append(prepared)
        size += len(prepared.header) + len(prepared.body)
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _frames(prepared: AmqpMessage, channel: int, most: int) -> Iterator[bytes]:
    yield _frame(1, channel, prepared.template.place)
    yield _frame(2, channel, prepared.header)
    for start in range(0, len(prepared.body), most):
        yield _frame(3, channel, prepared.body[start : start + most])


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(content)) + content + _END


class Transport:
    """
    Writes letters to one app's broker.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._redis = RedisTransport(app)
        self._amqp = AmqpTransport(app)

    def write(self, prepared_messages: list[PreparedMessage], producer: Any = None) -> None:
        """
        Send the letters, and mark those that are sent.

        Args:
            prepared_messages: To be sent.
            producer: Celery's, to send them with; one of the app's unless given.

        Raises:
            OperationalError: The broker could not be reached, or refused them.
        """
        to_rabbitmq = [
            prepared for prepared in prepared_messages if isinstance(prepared, AmqpMessage)
        ]
        if to_rabbitmq:
            self._amqp.write(to_rabbitmq, producer)
        if len(to_rabbitmq) < len(prepared_messages):
            to_redis = [each for each in prepared_messages if not isinstance(each, AmqpMessage)]
            self._redis.write(to_redis, producer)
