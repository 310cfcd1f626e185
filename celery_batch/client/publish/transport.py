"""Writes many messages at once, on the connections of Celery's own producers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from struct import pack
from time import monotonic
from typing import Any

from amqp import spec
from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.client.publish.amqp_message import AmqpMessage
from celery_batch.client.publish.buffer import PreparedMessage, last_deadline
from celery_batch.compat.amqp import expect_method
from celery_batch.compat.deadline import waiting_until
from celery_batch.compat.kombu import library_errors
from celery_batch.compat.redis import get_connection, packed

__all__ = ["Transport"]

_LATE = "the broker has not accepted the calls in time"

#: Bytes for which the connection's time-out holds: a socket's is one for all that it is given,
#: so a large message on a slow link would exceed it however steadily it goes.
_REDIS_WRITE = 1 << 17

#: Bytes in the system's buffers for each of which, once written, the answer may take the
#: time-out once more; and most bytes there.
_STEP, _BUFFERED = 1 << 20, 1 << 22

#: Bytes that are written to RabbitMQ at once.  Should the connection break meanwhile, these
#: messages are written again: the fewer they are, the fewer arrive twice.
_AMQP_WRITE = 1 << 18

#: Seconds after which a broker that takes nothing, as when it is short of memory, is given up.
_TIMEOUT = 60.0

#: Seconds for which it is waited for at least, also after the senders' deadline.
_SHORTEST_TIMEOUT = 0.001

#: What ends a frame, and the bytes that a frame has besides its content.
_FRAME_END, _FRAME_OVERHEAD = b"\xce", 8


class Transport:
    """Writes messages to one app's broker, to RabbitMQ without confirms, by Celery's settings."""

    def __init__(self, app: Any) -> None:
        self._app = app
        #: Of the last write to Redis, on which the next one is tried first.
        self._redis_channel: Any = None

    def write(self, messages: list[PreparedMessage], producer: Any = None) -> None:
        """Send messages, and mark those that are sent; raise why others are not."""
        for_amqp = [message for message in messages if isinstance(message, AmqpMessage)]
        if for_amqp:
            with waiting_until(last_deadline(for_amqp)):
                self._write_as_celery_does(_push_amqp, for_amqp, producer)
        if len(for_amqp) < len(messages):
            for_redis = [message for message in messages if not isinstance(message, AmqpMessage)]
            with waiting_until(last_deadline(for_redis)):
                self._write_redis(for_redis, producer)

    def _write_redis(self, messages: list[PreparedMessage], producer: Any) -> None:
        channel = self._redis_channel if producer is None else None
        if channel is not None and not channel.closed:
            try:
                _push_redis(channel, messages)
            except RedisError as error:
                is_late = last_deadline(messages) <= monotonic()
                if is_late or not self._app.conf.task_publish_retry:
                    raise OperationalError(str(error)) from error
            else:
                return

        def push(own: Any, messages: list[PreparedMessage]) -> None:
            _push_redis(own.channel, messages)

        self._redis_channel = self._write_as_celery_does(push, messages, producer)

    def _write_as_celery_does(
        self, push: Callable[[Any, list[Any]], None], messages: list[Any], producer: Any
    ) -> Any:
        """Push messages with a producer and Celery's retries; return the channel."""
        conf, deadline = self._app.conf, last_deadline(messages)

        def on_error(error: Exception, _pause: float) -> None:
            if monotonic() >= deadline:
                raise error

        with self._app.producer_or_acquire(producer) as own:
            connection = own.connection
            if conf.task_publish_retry:
                policy = dict(conf.task_publish_retry_policy)
                connection.transport_options.update(policy)
                push = connection.ensure(own, push, on_error, **policy)
            with library_errors(connection):
                push(own, messages)
                return own.channel


def _push_redis(channel: Any, messages: list[PreparedMessage]) -> None:
    """Send one LPUSH for each list and read the answers; leave out what is there already."""
    lists: dict[str, list[PreparedMessage]] = {}
    for message in messages:
        if not message.sent:
            lists.setdefault(message.key, []).append(message)
    pool, refused = channel.pool, None
    deadline = last_deadline(messages)
    connection = get_connection(pool)
    try:
        commands = b"".join(packed(_lpush(*each) for each in lists.items()))
        _send(connection, commands, deadline)
        for pushed in lists.values():
            _await_answer(connection, deadline, len(commands))
            try:
                connection.read_response()
            except ResponseError as error:
                refused = refused or error
                continue
            for message in pushed:
                message.sent = True
    except BaseException:
        connection.disconnect()  # the next user must not read the answers that are still to come
        raise
    finally:
        pool.release(connection)
    if refused is not None:
        raise refused


def _lpush(key: str, messages: list[PreparedMessage]) -> list[bytes]:
    texts = (message.text for message in messages)
    return [b"LPUSH", key.encode(), *(t.encode() if isinstance(t, str) else t for t in texts)]


def _send(connection: Any, commands: bytes, deadline: float) -> None:
    """Write commands; each part of them has the connection's time-out."""
    connection.send_packed_command([commands[:_REDIS_WRITE]])
    rest = memoryview(commands)[_REDIS_WRITE:]
    for start in range(0, len(rest), _REDIS_WRITE):
        if monotonic() >= deadline:
            raise TimeoutError(_LATE)
        connection.send_packed_command([rest[start : start + _REDIS_WRITE]], check_health=False)


def _await_answer(connection: Any, deadline: float, size: int) -> None:
    """Wait for an answer where the connection's own time-out is not the one that holds."""
    if deadline == math.inf and size < _STEP:
        return
    left = max(deadline - monotonic(), 0.0)
    timeout = connection.socket_timeout
    if timeout is None:
        timeout = math.inf
    elif size >= _STEP:
        timeout *= 1 + min(size, _BUFFERED) // _STEP
    elif left >= timeout:
        return
    shortest = min(left, timeout)
    if shortest < math.inf and not _can_read(connection, shortest):
        raise TimeoutError(_LATE) if left <= timeout else RedisTimeoutError(_LATE)


def _can_read(connection: Any, seconds: float) -> bool:
    """Wait for bytes of an answer; return whether there are any."""
    try:
        return bool(connection.can_read(seconds))
    except ValueError as error:  # from redis-py's buffer, which was closed meanwhile
        raise RedisConnectionError("the connection was closed while it was read") from error


def _push_amqp(producer: Any, messages: list[AmqpMessage]) -> None:
    """Write frames, and wait until the broker has read them where there are many."""
    left = [message for message in messages if not message.sent]
    timeout = max(min(_TIMEOUT, last_deadline(left) - monotonic()), _SHORTEST_TIMEOUT)
    for template in {id(message.template): message.template for message in left}.values():
        for entity in template.declare:
            producer.maybe_declare(entity)
    channel = producer.channel
    connection = channel.connection
    if connection is None:
        raise RecoverableConnectionError("connection already closed")
    try:
        _read_events(connection)
        for written in _split(left):
            _write_frames(channel, written, timeout)
            if len(left) > 1 or left[0].is_one_of_many:
                _await_receipt(channel, timeout)
            for message in written:
                message.sent = True
    except TimeoutError as error:
        connection.collect()  # to close it in form would be to wait for the broker again
        text = f"the broker has taken nothing for {timeout:.2g} seconds"
        raise OperationalError(text) from error


def _write_frames(channel: Any, messages: list[AmqpMessage], timeout: float) -> None:
    connection = channel.connection
    if connection is None:
        raise RecoverableConnectionError("connection already closed")
    frames = [
        frame
        for message in messages
        for frame in _frames(message, channel.channel_id, connection.frame_max)
    ]
    with connection.transport.having_timeout(timeout):
        connection.transport.write(b"".join(frames))
    connection.bytes_sent += len(messages)  # which counts messages, for the heartbeat


def _read_events(connection: Any) -> None:
    """Read what the broker has sent meanwhile, as py-amqp does before it publishes."""
    if connection.client_properties.get("capabilities", {}).get("connection.blocked"):
        try:
            connection.drain_events(timeout=0)
        except TimeoutError:
            return


def _await_receipt(channel: Any, timeout: float) -> None:
    """Return when the broker has read all that was written on a channel, or raise TimeoutError."""
    # Messages on their way are lost if this process ends.  The broker reads a channel in order, and
    # answers here that this one, which has no consumer, may have any number unacknowledged.
    answered = expect_method(channel, spec.Basic.QosOk)
    channel.send_method(spec.Basic.Qos, "lBb", (0, 0, False))
    deadline = monotonic() + timeout
    while not answered.ready:
        connection, left = channel.connection, deadline - monotonic()
        if connection is None:
            raise RecoverableConnectionError("connection already closed")
        if left <= 0:
            raise TimeoutError
        connection.blocking_read(left)  # it reads heartbeats, too, and they are no answer


def _split(messages: list[AmqpMessage]) -> Iterator[list[AmqpMessage]]:
    """Yield the messages of each write."""
    written: list[AmqpMessage] = []
    size = 0
    for message in messages:
        written.append(message)
        size += len(message.header) + len(message.body)
        if size >= _AMQP_WRITE:
            yield written
            written, size = [], 0
    if written:
        yield written


def _frames(message: AmqpMessage, channel: int, frame_max: int) -> Iterator[bytes]:
    yield _frame(1, channel, message.template.method)
    yield _frame(2, channel, message.header)
    step = frame_max - _FRAME_OVERHEAD
    for start in range(0, len(message.body), step):
        yield _frame(3, channel, message.body[start : start + step])


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(content)) + content + _FRAME_END
