"""Acknowledges many messages in one round trip, and records which of them run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery.concurrency.solo import TaskPool as SoloPool
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.redis.restore import Terms
from celery_batch.worker.redis.scripts import script
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = [
    "BulkAcks",
    "RedisRunningMessages",
]


logger = logging.getLogger(__name__)


#: Seconds until a Redis that refused is asked again.
_AGAIN = 1.0


class BulkAcks:
    """
    Collects acknowledgements and sends them once in a pass of the event loop.

    They are late by less than a pass, so delivery stays at least once.  What is said
    of a message on a connection that is gone is kept for the next one: the tags are
    the messages' own and stay good.

    Args:
        channel: Kombu's Redis channel.
        consumer: Celery's consumer, with an event loop.
        scheduler: Of the same worker.
        lease: What is acknowledged is crossed off its list.
        tags: What could not be sent on earlier connections; more is put there when
            this one has ended.
    """

    def __init__(
        self, channel: Any, consumer: Any, scheduler: Scheduler, lease: Lease, tags: list[str]
    ) -> None:
        self._channel = channel
        self._qos = channel.qos
        self._consumer = consumer
        self._scheduler = scheduler
        self._lease = lease
        # Past kombu's own client, which puts the key prefix before some keys only.
        self._done = Redis(connection_pool=channel.pool).register_script(script("acknowledge"))
        self._tags = tags
        self._marks: list[str] = []
        self._is_flushing_soon = self._is_trying_again = False
        self._lock = threading.RLock()  # pools may acknowledge on threads
        self._is_sending = False
        self._sweeps = 0
        self.has_ended = False
        qos = self._qos
        qos.ack, qos.reject = self.ack, self._reject
        qos.restore_by_tag, qos.restore_unacked = self._restore_by_tag, self._restore_all
        qos.restore_unacked_once = self._restore_all
        qos.restore_visible = self._restore_visible

    def ack(self, tag: str) -> None:
        """Acknowledge one message, soon."""
        self._qos._quick_ack(tag)  # noqa: SLF001 (frees its place in the prefetch window)
        self._tags.append(tag)
        if not self.has_ended:
            self._flush_soon()

    def mark(self, tags: Iterable[str]) -> None:
        """Note that the batch of these messages runs, soon and before they are acknowledged."""
        if self.has_ended:
            return
        held = self.held_here()
        self._marks += [tag for tag in tags if tag in held]
        if self._marks:
            self._flush_soon()

    def held_here(self) -> set[str]:
        """Return the delivery tags of what was delivered here and is not acknowledged."""
        delivered, done = self._qos._delivered, self._qos._dirty  # noqa: SLF001
        return {tag for tag in delivered if tag not in done}

    def let_go(self, tags: Iterable[str]) -> None:
        """Hold these messages no longer, and tell nobody: they are others' now."""
        for tag in tags:
            self._qos._quick_ack(tag)  # noqa: SLF001 (frees its place in the prefetch window)

    def flush(self) -> None:
        """
        Send what has been collected; what cannot be sent is kept.

        Raises:
            redis.ConnectionError: Redis is gone; Celery then makes a new connection.
        """
        self._is_flushing_soon = False
        with self._lock:
            if self._is_sending:  # we are in a signal's handler, on top of who sends this too
                return
            self._is_sending = True
            try:
                while not self.has_ended and (self._tags or self._marks) and self._send():
                    pass
            finally:
                self._is_sending = False

    def _send(self) -> bool:
        keys = self._lease.keys
        tags, marks = list(self._tags), list(self._marks)
        try:
            self._done(
                keys=[keys.index, keys.unacked, keys.owner_of, keys.held],
                args=["\n".join(tags), "\n".join(marks)],
            )
        except ResponseError as error:
            logger.warning("Redis refuses acknowledgements (%s): sent again soon", error)
            if not self._is_trying_again:
                self._is_trying_again = True
                self._consumer.hub.call_later(_AGAIN, self._try_again)
            return False
        del self._tags[: len(tags)]
        del self._marks[: len(marks)]
        return True

    def _try_again(self) -> None:
        self._is_trying_again = False
        self._flush_soon()

    def end(self) -> None:
        """Send nothing more on this connection; what is still to be sent is the next one's."""
        self.has_ended = True
        qos = self._qos
        qos._on_collect.cancel()  # noqa: SLF001 (kombu's own last try, at the exit, keeps it alive)
        qos._delivered.clear()  # noqa: SLF001
        qos._delivered.restored = True  # noqa: SLF001

    def _flush_soon(self) -> None:
        if not self._scheduler.is_open:
            self.flush()  # nobody will come by later
        elif not self._is_flushing_soon:
            self._is_flushing_soon = True
            self._consumer.hub.call_soon(self.flush)

    def _reject(self, tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 (kombu's signature)
        if not requeue:
            self.ack(tag)
        elif not self.has_ended:  # else it has gone back with all the others
            self._restore_by_tag(tag, leftmost=True)
            self._qos._quick_ack(tag)  # noqa: SLF001

    def _restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 (kombu's signature)
        command = "LPUSH" if leftmost else "RPUSH"
        terms = Terms(self._lease.keys.owner, command=command)
        self._lease.restorer.give_back({tag: "0"}, terms)

    def _restore_all(self, *_: Any, **__: Any) -> None:
        """Give everything back, as the channel closes; nothing here may keep it from closing."""
        try:
            self.flush()
        except (RedisError, OSError) as error:
            logger.warning("Could not acknowledge (%s): sent on the next connection", error)
        self.end()
        self._lease.end()

    def _restore_visible(self, start: int = 0, num: int | None = None, interval: int = 10) -> None:  # noqa: ARG002 (kombu's signature)
        """As kombu's own, by Redis' clock, and sparing what a living worker holds."""
        self._sweeps += 1
        if (self._sweeps - 1) % (interval or 1) == 0 and not self.has_ended:
            self._lease.restorer.sweep(self._qos.visibility_timeout, num)


class RedisRunningMessages(RunningMessages):
    """
    The entries for one connection's messages.

    Args:
        pool: Celery's.
        lease: On the messages.
        acks: The entries go with the acknowledgements.
        drop: Told the delivery tags of messages that others have taken.
    """

    collects = reads_by_room = True

    def __init__(
        self, pool: Any, lease: Lease, acks: BulkAcks, drop: Callable[[set[str]], object]
    ) -> None:
        self._is_solo = isinstance(pool, SoloPool)
        self._lease = lease
        self._acks = acks
        self._drop = drop

    def started(self, task_requests: Sequence[Any]) -> None:
        """
        Note that a batch runs: should this worker die, each message has been lost once.

        Args:
            task_requests: Celery's requests, on whichever connection they came.
        """
        self._acks.mark(request.message.delivery_tag for request in task_requests)
        if self._is_solo:
            self._acks.flush()  # the model runs before the event loop comes by again

    def give_back(self, task_requests: Sequence[Any]) -> None:
        """
        Put the messages of requests back to the front of their queues, in their order.

        Args:
            task_requests: Celery's requests, none of which has run; oldest first.

        Raises:
            RedisError: Redis cannot be reached, or refuses; nobody is to be told twice.
        """
        tags = [request.message.delivery_tag for request in task_requests]
        flags = dict.fromkeys(reversed(tags), "0")  # whose message is put there last goes first
        self._lease.restorer.give_back(flags, Terms(self._lease.keys.owner))
        self._acks.let_go(tags)
        for request in task_requests:
            request.given_back()

    def lost_tags(self) -> set[str]:
        """
        Return the delivery tags of what is in this worker but no longer its own.

        Others take what a worker holds when it has shown no sign of life for the length
        of its lease.  Asks Redis only where that may have happened.
        """
        if not (self._lease.in_doubt or self._lease.is_late):
            return set()
        try:
            return self._acks.held_here() - self._lease.renew()
        except (RedisError, OSError):
            return set()  # the connection is about to be found lost, and all with it

    def drop_lost(self) -> None:
        """Let go of what is no longer ours; cheap, as it is called where a batch may leave."""
        lost = self.lost_tags()
        if lost:
            self._acks.let_go(lost)
            self._drop(lost)
