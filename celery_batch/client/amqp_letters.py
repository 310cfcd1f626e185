"""Letters to RabbitMQ, many in one write, on the connections that Celery's own producers use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import pack
from time import monotonic
from typing import Any

from amqp import spec
from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import OperationalError
from vine import promise

from celery_batch.client.amqp_template import AmqpLetter
from celery_batch.client.outbox import last_deadline

__all__ = ["AmqpLetters"]

#: Bytes that are written at once.  Should the connection break meanwhile, these letters are
#: written again: the fewer they are, the fewer arrive twice.
_PIECE = 1 << 18

#: Seconds after which a broker that takes nothing, as when it is short of memory, is given up.
_PATIENCE = 60.0

#: Seconds for which it is waited for at least, also where the senders' time is over.
_LEAST = 0.001

#: What ends a frame, and the bytes that a frame has beside what is in it.
_END, _AROUND = b"\xce", 8


class AmqpLetters:
    """
    Writes letters to RabbitMQ, without confirms.

    Celery's settings hold as for single messages: the pool of connections, how often
    and how long publishing is tried again, and which errors say that it failed.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    def write(self, letters: list[AmqpLetter], producer: Any = None) -> None:
        """
        Send the letters, and mark those that are sent.

        Args:
            letters: To be sent.
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
                push(own, letters)


def _push(producer: Any, letters: list[AmqpLetter]) -> None:
    left = [letter for letter in letters if not letter.sent]
    patience = max(min(_PATIENCE, last_deadline(left) - monotonic()), _LEAST)
    for template in {id(letter.template): letter.template for letter in left}.values():
        for entity in template.declare:
            producer.maybe_declare(entity)
    channel = producer.channel
    connection = channel.connection
    if connection is None:
        raise RecoverableConnectionError("connection already closed")
    _hear(connection)
    for piece in _pieces(left):
        frames = [
            frame
            for letter in piece
            for frame in _frames(letter, channel.channel_id, connection.frame_max - _AROUND)
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
        for letter in piece:
            letter.sent = True


def _hear(connection: Any) -> None:
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


def _pieces(letters: Iterable[AmqpLetter]) -> Iterator[list[AmqpLetter]]:
    piece: list[AmqpLetter] = []
    size = 0
    for letter in letters:
        piece.append(letter)
        size += len(letter.header) + len(letter.body)
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _frames(letter: AmqpLetter, channel: int, most: int) -> Iterator[bytes]:
    yield _frame(1, channel, letter.template.place)
    yield _frame(2, channel, letter.header)
    for start in range(0, len(letter.body), most):
        yield _frame(3, channel, letter.body[start : start + most])


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(content)) + content + _END
