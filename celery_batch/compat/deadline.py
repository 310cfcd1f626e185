"""
A deadline for all that a thread or a coroutine waits for at a broker while it sends.

Kombu makes connections, opens channels and declares queues in the midst of a call.  Py-amqp waits
for each answer without a limit; so does redis-py, unless it has a `socket_timeout`, which may be
longer than is left.  Celery's backend subscribes to results in each call, and tries for 20 s.  So
their methods are replaced when there is a deadline for the first time.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from amqp.transport import SSLTransport, _AbstractTransport
from celery.backends.redis import RedisBackend
from kombu import connection as kombu_connection
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

__all__ = ["current_deadline", "waiting_until"]

logger = logging.getLogger(__name__)

#: By the monotonic clock; of this thread or coroutine.
_deadline: ContextVar[float] = ContextVar("celery_batch_deadline", default=math.inf)

current_deadline = _deadline.get

#: Seconds for each step when the deadline is over.
_SHORTEST = 0.001


@contextmanager
def waiting_until(deadline: float) -> Iterator[None]:
    """Give up at a deadline, by the monotonic clock, on what the broker is asked for meanwhile."""
    if deadline < math.inf:
        _limit_waits()
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


@cache
def _limit_waits() -> None:
    """Have py-amqp, redis-py and Celery's Redis backend keep deadlines from now on."""
    for kind, name, limited in (
        (_AbstractTransport, "_connect", _wait_amqp),
        (SSLTransport, "_setup_transport", _secure_amqp),
        (_AbstractTransport, "having_timeout", _wait_amqp),
        (_AbstractTransport, "write", _write_amqp),
        (AbstractConnection, "connect", _connect_redis),
        (AbstractConnection, "send_packed_command", _send_redis),
        (AbstractConnection, "read_response", _talk_redis),
        (RedisBackend, "on_connection_error", _retry_backend),
        (kombu_connection, "retry_over_time", _retry_connection),
    ):
        own = getattr(kind, name, None)
        if own is None:
            text = "%s has no %s: a broker that hangs may keep senders beyond their deadlines"
            logger.warning(text, kind.__name__, name)
        else:
            setattr(kind, name, _replaced(own, limited))


def _replaced(own: Any, limited: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for one of theirs: it calls that, or with a deadline `limited` with it."""

    @wraps(own)  # others look at its parameters
    def in_time(*args: Any, **options: Any) -> Any:
        if current_deadline() == math.inf:
            return own(*args, **options)
        return limited(own, *args, **options)

    return in_time


def _limit(seconds: float | None) -> float:
    """Return a time limit, None for none, or what is left until the deadline if that is less."""
    left = max(current_deadline() - time.monotonic(), _SHORTEST)
    return left if seconds is None else min(seconds, left)


def _wait_amqp(wait: Any, transport: Any, *args: Any) -> Any:
    """Limit the timeout, which is the last argument."""
    return wait(transport, *args[:-1], _limit(args[-1]))


def _secure_amqp(setup: Any, transport: Any) -> None:
    """Limit the handshake of TLS: by the socket, or from py-amqp 5.4 by `connect_timeout`."""
    timeout = transport.connect_timeout
    transport.connect_timeout = _limit(timeout)
    transport.sock.settimeout(transport.connect_timeout)
    try:
        setup(transport)
    finally:
        transport.connect_timeout = timeout
    transport.sock.settimeout(None)


def _write_amqp(write: Any, transport: Any, data: bytes) -> None:
    with transport.having_timeout(None):
        write(transport, data)


def _connect_redis(connect: Any, connection: Any) -> None:
    """Connect once, as redis-py does, with what is left of the time for each step."""
    is_connected = connection._sock is not None
    if is_connected:
        connect(connection)
        return
    retry, timeout = connection.retry, connection.socket_connect_timeout
    make_socket = connection._connect

    def make_limited_socket() -> Any:
        made = make_socket()
        made.settimeout(_limit(connection.socket_timeout))
        return made

    connection.retry, connection.socket_connect_timeout = Retry(NoBackoff(), 0), _limit(timeout)
    connection._connect = make_limited_socket
    try:
        connect(connection)
    finally:
        connection.retry, connection.socket_connect_timeout = retry, timeout
        del connection._connect
    connection._sock.settimeout(connection.socket_timeout)


def _send_redis(send: Any, connection: Any, *args: Any, **options: Any) -> Any:
    """Limit the waits of a command also where redis-py would connect within it."""
    if connection._sock is None:
        connection.connect()
    return _talk_redis(send, connection, *args, **options)


def _talk_redis(talk: Any, connection: Any, *args: Any, **options: Any) -> Any:
    """Limit each wait for a connection's socket, whose own time limit it has again afterwards."""
    sock = connection._sock
    if sock is None:
        return talk(connection, *args, **options)
    timeout = sock.gettimeout()
    sock.settimeout(_limit(timeout))
    try:
        return talk(connection, *args, **options)
    finally:
        if connection._sock is sock:  # another thread's limit may have been on it
            sock.settimeout(connection.socket_timeout if timeout else timeout)


def _retry_connection(
    retry: Any,
    fun: Any,
    catch: Any,
    args: Any,
    kwargs: Any,
    errback: Any,
    *more: Any,
    **options: Any,
) -> Any:
    """Have kombu try again until the deadline to connect, and sleep no longer between."""

    def wait(error: Exception, *found: Any) -> float:
        if time.monotonic() >= current_deadline():
            raise error
        return _limit(errback(error, *found) or 0.0)

    return retry(fun, catch, args, kwargs, wait, *more, **options)


def _retry_backend(wait: Any, backend: Any, retries: Any, error: Exception, *args: Any) -> float:
    """Have the backend try again until the deadline; it subscribes to results in each call."""
    if time.monotonic() >= current_deadline():
        raise error
    return _limit(wait(backend, retries, error, *args) or 0.0)
