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
from kombu import connection
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


def _limited(seconds: float | None) -> float | None:
    """Return a time limit, at most what is left until the deadline; None is no limit."""
    deadline = current_deadline()
    if deadline == math.inf:
        return seconds
    left = max(deadline - time.monotonic(), _SHORTEST)
    return left if seconds is None else min(seconds, left)


@cache
def _limit_waits() -> None:
    """Have py-amqp, redis-py and Celery's Redis backend keep deadlines from now on."""
    _replace(_AbstractTransport, "_connect", _waiting_amqp)
    _replace(SSLTransport, "_setup_transport", _securing_amqp)
    _replace(_AbstractTransport, "having_timeout", _waiting_amqp)
    _replace(_AbstractTransport, "write", _writing_amqp)
    _replace(AbstractConnection, "connect", _connecting_redis)
    _replace(AbstractConnection, "send_packed_command", _sending_redis)
    _replace(AbstractConnection, "read_response", _talking_redis)
    _replace(RedisBackend, "on_connection_error", _retrying_backend)
    _replace(connection, "retry_over_time", _retrying_connection)


def _replace(kind: Any, name: str, limited: Callable[[Any], Any]) -> None:
    method = getattr(kind, name, None)
    if method is None:
        text = "%s has no %s: a broker that hangs may keep senders beyond their deadlines"
        logger.warning(text, kind.__name__, name)
    else:
        setattr(kind, name, limited(method))


def _waiting_amqp(wait: Any) -> Any:
    """Limit the timeout, which is the last argument."""

    def wait_in_time(self: Any, *args: Any) -> Any:
        return wait(self, *args[:-1], _limited(args[-1]))

    return wait_in_time


def _securing_amqp(setup: Any) -> Any:
    """Limit the handshake of TLS: by the socket, or from py-amqp 5.4 by `connect_timeout`."""

    def setup_in_time(self: Any) -> None:
        timeout = self.connect_timeout
        if current_deadline() == math.inf:
            setup(self)
            return
        self.connect_timeout = _limited(timeout)
        self.sock.settimeout(self.connect_timeout)
        try:
            setup(self)
        finally:
            self.connect_timeout = timeout
        self.sock.settimeout(None)

    return setup_in_time


def _writing_amqp(write: Any) -> Any:
    def write_in_time(self: Any, data: bytes) -> None:
        if current_deadline() == math.inf:
            write(self, data)
            return
        with self.having_timeout(None):
            write(self, data)

    return write_in_time


def _connecting_redis(connect: Any) -> Any:
    """Connect once, as redis-py does, with what is left of the time for each step."""

    def connect_in_time(self: Any) -> None:
        left = _limited(None)
        if left is None or getattr(self, "_sock", None) is not None:
            connect(self)
            return
        retry, timeout, make_socket = self.retry, self.socket_connect_timeout, self._connect

        def make_limited_socket() -> Any:
            made = make_socket()
            made.settimeout(_limited(self.socket_timeout))
            return made

        self.retry, self.socket_connect_timeout = Retry(NoBackoff(), 0), _limited(timeout)
        self._connect = make_limited_socket
        try:
            connect(self)
        finally:
            self.retry, self.socket_connect_timeout = retry, timeout
            del self._connect
        self._sock.settimeout(self.socket_timeout)

    return connect_in_time


def _sending_redis(send: Any) -> Any:
    """Limit the waits of a command also where redis-py would connect within it."""
    send_at_once = _talking_redis(send)

    @wraps(send)
    def send_in_time(self: Any, *args: Any, **options: Any) -> Any:
        if current_deadline() != math.inf and getattr(self, "_sock", None) is None:
            self.connect()
        return send_at_once(self, *args, **options)

    return send_in_time


def _talking_redis(talk: Any) -> Any:
    """Limit each wait for a connection's socket, whose own time limit it has again afterwards."""

    @wraps(talk)  # others look at its parameters
    def talk_in_time(self: Any, *args: Any, **options: Any) -> Any:
        sock = getattr(self, "_sock", None)
        if sock is None or current_deadline() == math.inf:
            return talk(self, *args, **options)
        timeout = sock.gettimeout()
        sock.settimeout(_limited(timeout))
        try:
            return talk(self, *args, **options)
        finally:
            if self._sock is sock:  # another thread's limit may have been found on it
                sock.settimeout(self.socket_timeout if timeout else timeout)

    return talk_in_time


def _retrying_connection(retry: Any) -> Any:
    """Have kombu try again until the deadline to connect, and sleep no longer between."""

    @wraps(retry)
    def retry_in_time(
        fun: Any, catch: Any, args: Any, kwargs: Any, errback: Any, *more: Any, **options: Any
    ) -> Any:
        def wait(error: Exception, *found: Any) -> float:
            if time.monotonic() >= current_deadline():
                raise error
            return _limited(errback(error, *found)) or 0.0

        return retry(fun, catch, args, kwargs, wait, *more, **options)

    return retry_in_time


def _retrying_backend(wait: Any) -> Any:
    """Have the backend try again until the deadline; it subscribes to results in each call."""

    def wait_in_time(self: Any, max_retries: Any, error: Exception, *args: Any) -> float:
        if time.monotonic() >= current_deadline():
            raise error
        return _limited(wait(self, max_retries, error, *args)) or 0.0

    return wait_in_time
