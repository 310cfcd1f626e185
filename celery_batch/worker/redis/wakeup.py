"""

Waits for messages in queues without taking any.

BRPOP takes a message out of Redis and sends it: a worker that is killed before it has
written the message down loses it, and so does one whose process is gone while a pool
process still keeps its socket open.  BLMOVE from a list's end back to the same end
waits as BRPOP does, and changes nothing.

It answers with the message, which may be large and will be read in earnest a moment later.
So Redis is told to keep that answer to itself, and to say how long the list is instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from celery_batch.worker.redis.owner import awake_seconds, own_pool

__all__ = ["QueueWakeup"]

logger = logging.getLogger(__name__)

#: Seconds for which Redis waits before it answers that nothing came; a network that
#: forgets silent connections hears from us in time.
_WAIT = 30

#: Seconds without any answer after which a connection counts as lost.
_LOST_AFTER = 2 * _WAIT

_TIMEOUT = 5.0

#: Before a command whose answer is not to be sent.
_SILENCE = ("CLIENT", "REPLY", "SKIP")

#: An answer sooner than that is not due to the waiting's end.
_AT_ONCE = _WAIT / 2


@dataclass(slots=True)
class _QueueWait:
    """One connection that waits at one list."""

    connection: Any
    socket: int
    armed_at: float | None = None
    #: Whether it says only how long its list is; an error of BLMOVE is then not heard.
    is_quiet: bool = True


class QueueWakeup:
    """
    One connection for each list, because a BLMOVE waits at one list only.

    Args:
        channel: Kombu's Redis channel.
        hub: Celery's event loop.
        on_ring: Called on the loop when some list has a message.
        on_broken: Called when this Redis cannot do it, with its error.
    """

    def __init__(
        self,
        channel: Any,
        hub: Any,
        on_ring: Callable[[], object],
        on_broken: Callable[[ResponseError], object],
    ) -> None:
        self._pool = own_pool(channel, _TIMEOUT)
        self._hub = hub
        self._on_ring = on_ring
        self._on_broken = on_broken
        self._wakeup: dict[str, _QueueWait] = {}
        #: The lists for which a connection is on its way.
        self._connecting: set[str] = set()
        self._may_be_quiet = True
        self._is_closed = self._has_failed = False

    def arm(self, keys: Iterable[str]) -> None:
        """
        Wait at each of these lists, unless we do; soon, where that takes a new connection.

        Args:
            keys: The lists, key prefix included.
        """
        wanted, now = set(keys), awake_seconds()
        for key, wait_script in list(self._wakeup.items()):
            if key not in wanted or (
                wait_script.armed_at and now - wait_script.armed_at > _LOST_AFTER
            ):
                self._drop(key)
        for key in wanted:
            idle = self._wakeup.get(key)
            if idle is not None and idle.armed_at is None:
                self._begin(idle, key)
        self._connect(wanted - self._wakeup.keys() - self._connecting)

    def _begin(self, wait_script: _QueueWait, key: str) -> None:
        try:
            self._wait(wait_script, key)
        except (RedisError, OSError):
            self._drop(key)
            raise
        wait_script.armed_at = awake_seconds()

    def _wait(self, wait_script: _QueueWait, key: str) -> None:
        connection, wait = wait_script.connection, ("BLMOVE", key, key, "RIGHT", "RIGHT", _WAIT)
        wait_script.is_quiet = wait_script.is_quiet and self._may_be_quiet
        quietly = [_SILENCE, wait, ("LLEN", key)]
        commands = quietly if wait_script.is_quiet else [wait]
        connection.send_packed_command(connection.pack_commands(commands))

    def close(self) -> None:
        """Wait no more."""
        self._is_closed = True
        for key in list(self._wakeup):
            self._drop(key)

    def _connect(self, keys: set[str]) -> None:
        """Connect for these lists, beside the event loop: a Redis may take seconds for it."""
        if keys:
            self._connecting |= keys
            name = "batch-redis-connecting"
            threading.Thread(target=self._connect_all, args=(keys,), name=name, daemon=True).start()

    def _connect_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                connection = self._pool.connection_class(**self._pool.connection_kwargs)
                connection.connect()
            except Exception as error:  # noqa: BLE001 (whatever it is, the loop goes on without)
                self._hub.call_soon(self._not_connected, key, error)
            else:
                self._hub.call_soon(self._connected, key, connection)

    def _connected(self, key: str, connection: Any) -> None:
        self._connecting.discard(key)
        if self._is_closed:
            connection.disconnect()
            return
        self._has_failed = False
        wait_script = self._wakeup[key] = _QueueWait(connection, connection._sock.fileno())  # noqa: SLF001
        self._hub.add_reader(wait_script.socket, self._receive, key)
        with suppress(RedisError, OSError):  # if Redis is gone, the next command meets it
            self._begin(wait_script, key)

    def _not_connected(self, key: str, error: Exception) -> None:
        """Leave it: who asks us looks for himself every second, and then asks us again."""
        self._connecting.discard(key)
        if not self._is_closed and not self._has_failed:
            self._has_failed = True
            logger.warning("Could not connect to wait for messages (asked again soon): %s", error)

    def _drop(self, key: str) -> None:
        wait_script = self._wakeup.pop(key)
        self._hub.remove_reader(wait_script.socket)
        wait_script.connection.disconnect()

    def _receive(self, key: str) -> None:
        wait_script = self._wakeup.get(key)
        if wait_script is None:
            return
        try:
            found = wait_script.connection.read_response(disconnect_on_error=False)
        except ResponseError as error:
            self._drop(key)
            if wait_script.is_quiet:
                self._may_be_quiet = False
                self._on_ring()
            elif isinstance(error, NoPermissionError) or "unknown command" in str(error).lower():
                self._on_broken(error)
            # Else Redis is full, say, or the list is none: asked again before long.
        except (RedisError, OSError):
            self._drop(key)
            self._on_ring()  # if Redis is gone, the next command meets it
        else:
            if wait_script.is_quiet and not isinstance(
                found, int
            ):  # say a proxy, which answers anyway
                self._may_be_quiet = False
                self._drop(key)
            self._answered(wait_script, found)

    def _answered(self, wait_script: _QueueWait, found: Any) -> None:
        """Ring; if nothing is there and nobody waited, let the next answer tell of an error."""
        waited = awake_seconds() - (wait_script.armed_at or 0.0)
        wait_script.is_quiet = not (wait_script.is_quiet and found == 0 and waited < _AT_ONCE)
        wait_script.armed_at = None
        self._on_ring()
