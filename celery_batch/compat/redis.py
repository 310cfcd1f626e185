"""Uses of redis-py's private parts."""

from __future__ import annotations

import inspect
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from inspect import Parameter
from math import inf
from typing import Any, NamedTuple
from weakref import WeakSet

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.compat.deadline import current_deadline

__all__ = [
    "abort_connections",
    "allow_connections",
    "descriptor_of",
    "drop_connections",
    "get_connection",
    "is_full",
    "is_read_only",
    "log_no_pushes",
    "packed",
    "read_reply",
    "read_values",
    "round_trip",
    "track_connections",
]

logger = logging.getLogger(__name__)

#: Bytes of commands that are joined to be written; a connection's time-out holds for each write.
_JOINED_BYTES = 1 << 17

#: Bytes that are read from a socket at once; what is left of a value that is as long is read into
#: its own memory.
_READ_BYTES = 1 << 17

#: All open Redis connections of this process, to any server.
_connections: WeakSet[Any] = WeakSet()


class _Silent(NamedTuple):
    """A Redis that does not answer, and the only thread that may still connect to it."""

    address: tuple[Any, ...]
    thread: threading.Thread
    before_refusal: Callable[[], object]


_silent: _Silent | None = None


def get_connection(pool: Any) -> Any:
    """Return a connection of a pool, which redis-py before 5.3 tells what it is for."""
    kind: Any = type(pool)
    return pool.get_connection(*_connection_arguments(kind))


@cache
def _connection_arguments(kind: Any) -> tuple[str, ...]:
    parameters = inspect.signature(kind.get_connection).parameters
    name = parameters.get("command_name")
    return () if name is None or name.default is not Parameter.empty else ("_",)


def _read_answers(connection: Any, count: int) -> list[Any]:
    return [_read_answer(connection) for _ in range(count)]


def round_trip(
    client: Any,
    commands: Sequence[Sequence[Any]],  # of words, bytes or contiguous memoryviews
    read: Callable[[Any, int], list[Any]] = _read_answers,
) -> list[Any]:
    """Run commands in one round trip, with the client's retries; return answers and errors."""
    # A pipeline of redis-py takes two to four times the processor time.  What instruments such
    # pipelines does not see these commands.
    if not commands:
        return []
    connection = get_connection(client.connection_pool)

    def run() -> list[Any]:
        connection.send_packed_command(packed(commands))
        return read(connection, len(commands))

    try:
        return connection.retry.call_with_retry(run, lambda _: connection.disconnect())  # type: ignore[no-any-return]
    except BaseException:
        connection.disconnect()  # the next user must not read the answers that are still to come
        raise
    finally:
        client.connection_pool.release(connection)


def read_values(client: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Run commands that read values in one round trip, at less than half of redis-py's cost."""
    try:
        return round_trip(client, commands, _read_values)
    except _NoValueError:
        return round_trip(client, commands)


def _read_values(connection: Any, count: int) -> list[Any]:
    sock = getattr(connection, "_sock", None)
    if not isinstance(sock, socket.socket) or current_deadline() < inf:  # of which redis-py knows
        return _read_answers(connection, count)
    reader = _ValueReader(sock)
    try:
        values = [reader.read() for _ in range(count)]
    except TimeoutError as error:
        raise RedisTimeoutError("Timeout reading from socket") from error
    except OSError as error:
        raise RedisConnectionError(f"Error while reading from socket: {error}") from error
    if reader.has_rest:  # what Redis sends without being asked, which redis-py handles
        raise _NoValueError
    return values


class _NoValueError(Exception):
    """An answer is no value."""


class _ValueReader:
    """Reads values, as Redis sends them, from a socket of which nothing else has been read."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        #: Where the bytes are that were received and belong to no value yet.
        self._start = self._end = 0

    @property
    def has_rest(self) -> bool:
        """Whether bytes were received that belong to no value."""
        return self._start < self._end

    def read(self) -> bytearray:
        """Read the next value."""
        line = self._read_line()
        if line[:1] != b"$" or not line[1:].isdigit():
            raise _NoValueError
        value = bytearray(int(line[1:]))
        self._fill(memoryview(value))
        if self._read_line():
            raise _NoValueError
        return value

    def _read_line(self) -> bytearray:
        while (end := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            self._receive()
        line = self._buffer[self._start : end]
        self._start = end + 2
        return line

    def _fill(self, left: memoryview) -> None:
        while left:
            if self._start == self._end and len(left) >= _READ_BYTES:
                left = left[self._received(left) :]
                continue
            if self._start == self._end:
                self._receive()
            size = min(len(left), self._end - self._start)
            left[:size] = self._view[self._start : self._start + size]
            self._start += size
            left = left[size:]

    def _receive(self) -> None:
        """Receive more bytes behind those that are left."""
        rest = self._end - self._start
        if rest == len(self._buffer):  # no line is as long
            raise _NoValueError
        self._view[:rest] = self._buffer[self._start : self._end]
        self._start, self._end = 0, rest
        self._end += self._received(self._view[rest:])

    def _received(self, memory: memoryview) -> int:
        size = self._socket.recv_into(memory)
        if not size:
            raise RedisConnectionError("Connection closed by server.")
        return size


def packed(commands: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Yield the bytes of commands, large words uncopied."""
    parts: list[Any] = []
    size = 0
    for words in commands:
        parts.append(b"*%d\r\n" % len(words))
        for word in words:
            length = word.nbytes if isinstance(word, memoryview) else len(word)
            parts.append(b"$%d\r\n" % length)
            size += length
            if size >= _JOINED_BYTES:
                yield b"".join(parts)
                yield word
                parts, size = [b"\r\n"], 0
            else:
                parts += (word, b"\r\n")
    yield b"".join(parts)


def _read_answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def is_full(error: Exception) -> bool:
    """Return whether Redis has refused a command as its memory is full."""
    # Redis before 7 wraps the error if it occurs in a script.
    return isinstance(error, OutOfMemoryError) or "OOM command" in str(error)


def is_read_only(error: Exception) -> bool:
    """Return whether Redis has refused a command as it is a replica."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)  # as above


def descriptor_of(connection: Any) -> int:
    """Return the descriptor of a connection's socket, for an event loop."""
    return int(connection._sock.fileno())


def read_reply(connection: Any) -> Any:
    """Read the reply to a command; redis-py has an `AttributeError` for a closed connection."""
    if connection._sock is None:
        raise RedisConnectionError("the connection was closed before the reply came")
    return connection.read_response()


def log_no_pushes(pubsub: Any) -> None:
    """Have a connected subscription not make a text of each message of RESP3 for a log."""
    parser = getattr(pubsub.connection, "_parser", None)
    replace = getattr(parser, "set_pubsub_push_handler", None)
    if replace is not None:  # else, as with RESP2, there is no such log, or messages cost more
        replace(lambda response: response)


def track_connections() -> None:
    """Record each Redis connection that this process makes from now on."""
    name = "connect_check_health"  # before 5.3 there is only what calls it, as a connection's user
    if not hasattr(AbstractConnection, name):
        name = "connect"
    connect = getattr(AbstractConnection, name)
    if getattr(connect, "__module__", None) == __name__:
        return

    def connect_unless_silent(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _silent is not None:
            _refuse(_silent, self)
        _connections.add(self)
        return connect(self, *args, **kwargs)

    setattr(AbstractConnection, name, connect_unless_silent)


def _refuse(silent: _Silent, connection: Any) -> None:
    is_silent = _address(vars(connection)) == silent.address
    if is_silent and threading.current_thread() is not silent.thread:
        silent.before_refusal()
        # Not redis-py's own error, after which Celery tries again.
        raise ConnectionAbortedError("Redis does not answer, and this worker shuts down")


def abort_connections(client: Any, before_refusal: Callable[[], object]) -> None:
    """Abort the connections to a client's Redis, and refuse new ones of other threads than this."""
    # Kombu waits for a reply without limit: a worker that is told to stop would wait for a frozen
    # Redis.  Other workers take its messages when its lease is over.
    global _silent  # noqa: PLW0603 (one Redis at most)
    if _silent is None:
        address = _address(client.connection_pool.connection_kwargs)
        logger.warning("Redis does not answer, and this worker shuts down: it waits no longer")
        _silent = _Silent(address, threading.current_thread(), before_refusal)
    drop_connections(client)


def drop_connections(client: Any) -> None:
    """Have the connections of this process to a client's Redis end, those in use as well."""
    address = _address(client.connection_pool.connection_kwargs)
    for connection in _tracked():
        # The thread that reads from it closes it: that may be in the middle of a reply.
        open_socket = getattr(connection, "_sock", None)
        if open_socket is not None and _address(vars(connection)) == address:
            with suppress(OSError):  # closed meanwhile
                open_socket.shutdown(socket.SHUT_RDWR)


def _tracked() -> list[Any]:
    # No lock: a fork may copy it while it is held.
    while True:
        try:
            return list(_connections)
        except RuntimeError:  # another thread has connected meanwhile
            continue


def allow_connections() -> None:
    """Allow new connections again."""
    global _silent  # noqa: PLW0603 (see above)
    _silent = None


def _address(options: Any) -> tuple[Any, ...]:
    return tuple(options.get(name) for name in ("path", "host", "port"))
