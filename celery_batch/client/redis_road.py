"""Messages to Redis in one write, on the connections that Celery's own producers use."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.client.outbox import Letter, by_key, last_deadline

__all__ = ["RedisRoad"]

#: Bytes for which the connection's time-out holds: a socket's is one for all that it is given,
#: so a large message on a slow link would exceed it however steadily it goes.
_PIECE = 1 << 17

#: Bytes in the system's buffers for each of which, once written, the answer may take the
#: time-out once more; and most bytes there.
_STEP, _BUFFERED = 1 << 20, 1 << 22

_LATE = "the broker has not taken the calls in time"


class RedisRoad:
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

    def write(self, letters: list[Letter], producer: Any = None) -> None:
        """
        Put the letters in their lists, and mark those that are there.

        Args:
            letters: To be sent.
            producer: Celery's, to send them with; one of the app's unless given.

        Raises:
            OperationalError: The broker could not be reached, or refused them.
            TimeoutError: It has not taken them by the last of their deadlines.
        """
        channel = self._channel if producer is None else None
        if channel is not None and not channel.closed:
            try:
                _push(channel, letters)
            except RedisError as error:
                is_late = last_deadline(letters) <= monotonic()
                if is_late or not self._app.conf.task_publish_retry:
                    raise OperationalError(str(error)) from error
            else:
                return
        self._write_as_celery_does(letters, producer)

    def _write_as_celery_does(self, letters: list[Letter], producer: Any) -> None:
        app = self._app
        policy = dict(app.conf.task_publish_retry_policy)
        with app.producer_or_acquire(producer) as own:
            connection = own.connection
            push = _push_through
            if app.conf.task_publish_retry:
                connection.transport_options.update(policy)
                push = connection.ensure(own, push, **policy)
            with connection._reraise_as_library_errors():  # noqa: SLF001
                push(own, letters)
                self._channel = own.channel


def _push_through(producer: Any, letters: list[Letter]) -> None:
    _push(producer.channel, letters)


def _push(channel: Any, letters: list[Letter]) -> None:
    """Send one LPUSH for each list and read the answers; leave out what is there already."""
    lists = by_key(letter for letter in letters if not letter.sent)
    pool, refused = channel.pool, None
    until = last_deadline(letters)
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
            for letter in bundle:
                letter.sent = True
    except BaseException:
        connection.disconnect()  # what is still to be read on it is nobody else's answer
        raise
    finally:
        pool.release(connection)
    if refused is not None:
        raise refused


def _send(connection: Any, commands: bytes, until: float) -> None:
    """Write commands; each piece of them has the connection's time-out."""
    connection.send_packed_command([commands[:_PIECE]])
    rest = memoryview(commands)[_PIECE:]
    for start in range(0, len(rest), _PIECE):
        if monotonic() >= until:
            raise TimeoutError(_LATE)
        connection.send_packed_command([rest[start : start + _PIECE]], check_health=False)


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


def _packed(key: str, letters: list[Letter]) -> bytes:
    """Return an LPUSH as it goes over the wire."""
    words = [b"LPUSH", key.encode(), *map(_encoded, letters)]
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%b\r\n" % (len(word), word) for word in words
    )


def _encoded(letter: Letter) -> bytes:
    return letter.text.encode() if isinstance(letter.text, str) else letter.text
