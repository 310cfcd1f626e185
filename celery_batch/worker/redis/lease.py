"""
A worker's lease on the messages it holds, and the recovery of dead workers' messages.

A thread renews the lease every second, so that it does not expire while the event loop is busy
or a model runs on the solo pool.  It also refreshes the times of the messages for kombu's
visibility timeout.

Once a second one worker of each machine looks for workers whose lease has expired anywhere, or
whose process has ended on this machine, which can be found out only here: the one that renews its
lease first.  The work of one search is bounded, however many workers there are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from celery.utils.functional import noop
from celery.worker import state
from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.compat.redis import (
    abort_connections,
    allow_connections,
    drop_connections,
    is_read_only,
    track_connections,
)
from celery_batch.worker.redis.owner import (
    Keys,
    boottime,
    describe_self,
    is_dead,
    own_pool,
)
from celery_batch.worker.redis.restore import Restorer
from celery_batch.worker.redis.scripts import script

__all__ = ["Lease"]

logger = logging.getLogger(__name__)

#: Seconds for which a worker's lease is expired before the worker counts as dead: it may just be
#: reconnecting after an outage of Redis.
_GRACE = 2.0

#: Seconds after which a machine's workers search again: a bit less than they renew their leases.
_SEARCH_AFTER = 0.9

#: Seconds that the end of a lease waits for its thread.
_JOIN_TIMEOUT = 1.5

#: Most seconds between two refreshes of the messages' times.
_REFRESH_EVERY = 5.0


class Lease:
    """One connection's lease: its messages stay its own for so many seconds without a renewal."""

    def __init__(self, channel: Any, node: str, seconds: float) -> None:
        self.keys = Keys.of(channel)
        self.description = describe_self(node)
        self.milliseconds = max(int(seconds * 1000), 1)
        self.client = Redis(connection_pool=own_pool(channel, max(seconds / 3, 1.0)))
        self.restorer = Restorer(channel, self.client, self.keys)
        #: Called when a worker that shuts down would connect to a Redis that does not answer.
        self.before_refusal: Callable[[], object] = noop
        #: Called, perhaps repeatedly, when a worker that shuts down has lost its lease because
        #: Redis does not answer: the running requests cannot be acknowledged any more.
        self.on_shutdown_without_redis: Callable[[], object] = noop
        #: Whether other workers may have taken our messages, which has not been checked yet.
        self.in_doubt = False
        self._seconds = seconds
        self._refresh_every = min(channel.visibility_timeout / 4, _REFRESH_EVERY)
        self._interval = min(1.0, seconds / 5, self._refresh_every)
        #: Milliseconds for which one worker of this machine has the lock to search.
        self._search_every = max(int(min(_SEARCH_AFTER, self._interval) * 1000), 1)
        self._renew_lease = self.client.register_script(script("renew_lease"))
        self._find_dead = self.client.register_script(script("find_dead"))
        self._renewed_at = self._refreshed_at = boottime()
        self._grace = min(_GRACE, seconds / 2)
        #: From when on it counts that others' leases have expired.
        self._expiry_counts_from = boottime() + self._grace
        self._has_outage = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-lease", daemon=True)

    def open(self) -> None:
        """Take the lease before the first message; errors of the connection are the caller's."""
        track_connections()
        self._renew_once()
        self._renewed_at = boottime()
        self._thread.start()

    def end(self) -> None:
        """Stop renewing, put back the messages that are still held, and remove all records."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT)
        try:
            self.restorer.restore_own(self.keys.owner)
            self.client.delete(self.keys.search_lock)
        except (RedisError, OSError) as error:
            logger.warning(
                "Could not return messages (%s): others will in %g s", error, self._seconds
            )
        finally:
            self.client.connection_pool.disconnect()

    @property
    def is_late(self) -> bool:
        """Whether the lease may have expired: this process was stopped, or Redis unavailable."""
        return boottime() - self._renewed_at > self._seconds

    def renew(self) -> set[str]:
        """Take a new lease now, and return the delivery tags that are still ours."""
        self._renew_once()
        tags = {bytes_to_str(tag) for tag in self.client.hkeys(self.keys.held)}
        self._renewed_at = boottime()
        self.in_doubt = False
        return tags

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                if self._renew_in_time():
                    self._search()
            except Exception as error:  # noqa: BLE001 (no error may end the lease's thread)
                self._note_outage(error)
            else:
                if self._has_outage:
                    self._has_outage = False
                    allow_connections()
                    logger.warning("The lease on messages is renewed again")

    def _renew_in_time(self) -> bool:
        """Renew the lease; return whether this worker has the lock to search for dead ones now."""
        now = boottime()
        refreshes = now - self._refreshed_at >= self._refresh_every - self._interval / 2
        expired, has_lock = self._renew_once(refreshes=refreshes, searches=True)
        if refreshes:
            self._refreshed_at = now
        if expired or self.is_late:  # perhaps all workers were stopped, and renew in a moment
            self.in_doubt = True
            self._expiry_counts_from = boottime() + self._grace
        self._renewed_at = now
        return has_lock

    def _renew_once(self, *, refreshes: bool = False, searches: bool = False) -> tuple[bool, bool]:
        """Renew the lease, and the messages' times; return if it was over, and if we may search."""
        keys, has_expired, has_lock = self.keys, False, False
        cursor = "0" if refreshes else ""  # of the messages, of which each call refreshes some
        while True:
            expired, got_lock, cursor = self._renew_lease(
                keys=[
                    keys.alive,
                    keys.held,
                    keys.index,
                    keys.due,
                    keys.on_machine,
                    keys.search_lock,
                ],
                args=[
                    self.description,
                    self.milliseconds,
                    keys.owner,
                    cursor,
                    self._search_every if searches else "",
                ],
            )
            has_expired, has_lock = has_expired or bool(expired), has_lock or bool(got_lock)
            if bytes_to_str(cursor) == "0":
                return has_expired, has_lock

    def _search(self) -> None:
        """Search once for dead workers, and put their messages back, as far as there is time."""
        began = boottime()
        for owner, alive in self._dead():
            if boottime() - began >= self._interval or self._stopped.is_set():
                return  # or our own lease would expire
            restored = self.restorer.restore_dead(owner, alive)
            if restored:
                logger.warning("Returned %d messages of a dead worker to their queues", restored)

    def _dead(self) -> Iterator[tuple[str, str]]:
        """Yield each dead owner with the value of its `alive` key; "" if that has expired."""
        keys, cursor = self.keys, ""
        missing: list[bytes] = []
        while cursor != "0":
            found, missing, here = self._find_dead(
                keys=[keys.due, keys.on_machine],
                args=[keys.alive_prefix, cursor or "0", self._grace],
            )
            cursor, words = bytes_to_str(found), [bytes_to_str(word) for word in here]
            for owner, alive in zip(words[::2], words[1::2], strict=True):
                if owner != keys.owner and is_dead(alive):
                    yield owner, alive
        if boottime() >= self._expiry_counts_from:
            yield from ((owner, "") for owner in map(bytes_to_str, missing) if owner != keys.owner)

    def _note_outage(self, error: Exception) -> None:
        # After an outage of Redis all workers have the length of a lease to reconnect.
        self._expiry_counts_from = boottime() + self._seconds
        if is_read_only(error):  # the worker connects again, perhaps to another Redis
            drop_connections(self.client)
        if self._has_outage:  # one slow command alone does not mean that Redis is frozen
            self._stop_without_redis(error)
        if self._has_outage or self._stopped.is_set():
            return
        self._has_outage = True
        known = isinstance(error, (RedisError, OSError))
        logger.warning(
            "Cannot renew the lease on messages (%s): kept for %g s, tried again until then",
            error,
            self._seconds,
            exc_info=None if known else error,
        )

    def _stop_without_redis(self, error: Exception) -> None:
        """If this worker shuts down, do not let it wait for a Redis that does not answer."""
        is_stopping = state.should_stop is not None or state.should_terminate is not None
        if not is_stopping or not isinstance(error, RedisTimeoutError):
            return
        abort_connections(self.client, self.before_refusal)
        if self.is_late:
            self.on_shutdown_without_redis()
