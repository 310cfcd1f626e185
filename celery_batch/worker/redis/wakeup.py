"""
Waits for messages in queues without taking any.

BRPOP takes a message out of Redis and sends it: a worker that is killed before it has
recorded the message loses it, and so does one whose process is gone while a pool
process still keeps its socket open.  BLMOVE from a list's end back to the same end
waits as BRPOP does, and changes nothing.

Each list takes a connection, of which Redis has a limited number: the first lists have one, and
the others are looked at once a second.

Its reply is the message, which may be large and will be fetched a moment later anyway.
So Redis is told to skip that reply, and to send the length of the list instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from redis.exceptions import RedisError, ResponseError

from celery_batch.compat.redis import descriptor_of
from celery_batch.worker.redis.owner import boottime, own_pool
from celery_batch.worker.redis.scripts import lacks_command

__all__ = ["QueueWakeup"]

logger = logging.getLogger(__name__)

#: Seconds after which Redis replies that no message came; short enough that no network drops
#: the connection for being idle.
_WAIT = 30

#: Seconds without a reply after which a connection counts as lost.
_LOST_AFTER = 2 * _WAIT

_TIMEOUT = 5.0

#: Sent before a command whose reply is not wanted.
_SKIP_REPLY = ("CLIENT", "REPLY", "SKIP")

#: Most connections of one worker.
_MOST_WAITS = 32

#: Seconds without new connections after one was refused, at first and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

#: An earlier reply is not due to the end of the wait.
_AT_ONCE = _WAIT / 2

#: What follows where the access rules have been changed since the worker's start.
_WITHOUT_BLMOVE = "until its user may run it, an idle worker looks for messages once a second"


@dataclass(slots=True)
class _QueueWait:
    """A connection that waits for messages in one list."""

    connection: Any
    socket: int
    #: None while no command is sent.
    sent_at: float | None = None
    #: Whether the reply of BLMOVE is skipped, and with it an error of BLMOVE.
    skips_reply: bool = True


class QueueWakeup:
    """Waits with one connection for each list, as BLMOVE waits for one list; for the first ones."""

    def __init__(self, channel: Any, hub: Any, on_message: Callable[[], object]) -> None:
        self._pool = own_pool(channel, _TIMEOUT)
        self._hub = hub
        self._on_message = on_message
        self._waits: dict[str, _QueueWait] = {}
        #: The lists for which a thread connects.
        self._connecting: set[str] = set()
        self._may_skip_replies = True
        self._is_closed = self._is_forbidden = False
        #: When new connections may be made, and after how long a pause if the next one fails.
        self._connects_at, self._pause = -inf, _PAUSE

    def wait(self, keys: Iterable[str]) -> None:
        """Wait for messages in the first of these lists; new connections take a moment."""
        wanted, now = set(islice(keys, _MOST_WAITS)), boottime()
        for key, wait in list(self._waits.items()):
            is_lost = wait.sent_at and now - wait.sent_at > _LOST_AFTER
            if key not in wanted or is_lost:
                self._drop(key)
        for key in wanted & self._waits.keys():
            if self._waits[key].sent_at is None:
                self._send(key)
        if now >= self._connects_at:
            self._connect(wanted - self._waits.keys() - self._connecting)

    def _send(self, key: str) -> None:
        wait, command = self._waits[key], ("BLMOVE", key, key, "RIGHT", "RIGHT", _WAIT)
        wait.skips_reply = wait.skips_reply and self._may_skip_replies
        commands = [_SKIP_REPLY, command, ("LLEN", key)] if wait.skips_reply else [command]
        try:
            wait.connection.send_packed_command(wait.connection.pack_commands(commands))
        except (RedisError, OSError):
            self._drop(key)
            raise
        wait.sent_at = boottime()

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for key in list(self._waits):
            self._drop(key)

    def _connect(self, keys: set[str]) -> None:
        """Connect on a thread, as Redis may take seconds for it."""
        if keys:
            self._connecting |= keys
            name = "batch-redis-connecting"
            threading.Thread(target=self._connect_all, args=(keys,), name=name, daemon=True).start()

    def _connect_all(self, keys: Iterable[str]) -> None:
        left = set(keys)
        for key in keys:
            try:
                connection = self._pool.connection_class(**self._pool.connection_kwargs)
                connection.connect()
            except Exception as error:  # noqa: BLE001 (the event loop goes on without)
                self._hub.call_soon(self._not_connected, left, error)
                return
            left.discard(key)
            self._hub.call_soon(self._connected, key, connection)

    def _connected(self, key: str, connection: Any) -> None:
        self._connecting.discard(key)
        if self._is_closed:
            connection.disconnect()
            return
        wait = self._waits[key] = _QueueWait(connection, descriptor_of(connection))
        self._hub.add_reader(wait.socket, self._receive, key)
        with suppress(RedisError, OSError):  # if Redis is gone, the next command fails as well
            self._send(key)

    def _not_connected(self, keys: set[str], error: Exception) -> None:
        """Log it once: the caller looks every second by itself, and then calls `wait` again."""
        self._connecting -= keys
        if self._pause_connecting() and not self._is_closed:
            logger.warning("Could not connect to wait for messages (tried again soon): %s", error)

    def _pause_connecting(self) -> bool:
        """Make no connection for a while; return whether this is the first failure for long."""
        now = boottime()
        if now < self._connects_at:
            return False
        if is_first := now > self._connects_at + 2 * _LONGEST_PAUSE:
            self._pause = _PAUSE
        self._connects_at = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return is_first

    def _drop(self, key: str) -> None:
        wait = self._waits.pop(key)
        self._hub.remove_reader(wait.socket)
        wait.connection.disconnect()

    def _receive(self, key: str) -> None:
        wait = self._waits.get(key)
        if wait is None:
            return
        try:
            reply = wait.connection.read_response(disconnect_on_error=False)
        except ResponseError as error:
            self._drop(key)
            if wait.skips_reply:
                self._may_skip_replies = False
                self._on_message()
                return
            # Redis is full, say, or the key is no list: it is tried again before long.
            self._pause_connecting()
            if lacks_command(error) and not self._is_forbidden:
                self._is_forbidden = True
                logger.warning("Redis does not allow BLMOVE (%s): %s", error, _WITHOUT_BLMOVE)
        except (RedisError, OSError):
            self._drop(key)
            self._on_message()  # if Redis is gone, the next command fails as well
        else:
            if wait.skips_reply and not isinstance(reply, int):  # a proxy, say, that replies anyway
                self._may_skip_replies = False
                self._drop(key)
            self._note_reply(wait, reply)

    def _note_reply(self, wait: _QueueWait, reply: Any) -> None:
        """Wake up; if the list is empty too early, let the next reply show BLMOVE's error."""
        waited = boottime() - (wait.sent_at or 0.0)
        wait.skips_reply = not (wait.skips_reply and reply == 0 and waited < _AT_ONCE)
        wait.sent_at = None
        self._on_message()
