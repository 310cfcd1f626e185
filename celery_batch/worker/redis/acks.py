"""
Acknowledges many messages in one round trip, and records which of them run.

The event loop does not wait for the reply: Redis may be busy, or far away.  What is collected
meanwhile is sent after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery.concurrency.solo import TaskPool as SoloPool
from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from celery_batch.compat.celery import drop_limited
from celery_batch.compat.kombu import Unacknowledged
from celery_batch.compat.redis import descriptor_of, get_connection, read_reply
from celery_batch.worker.dispatch.running_messages import CollectedAcks
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.redis.scripts import script
from celery_batch.worker.scheduling.prefetch import OrdinaryLimit
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["RedisAcks"]

logger = logging.getLogger(__name__)

#: Seconds until acknowledgements that Redis refused are sent again.
_RETRY_AFTER = 1.0


class _Unread(NamedTuple):
    """A call of the script whose reply is still to come."""

    connection: Any
    descriptor: int
    tags: int
    running: int
    #: Fires when the reply is late, if the connection has a `socket_timeout`.
    timer: Any


class RedisAcks(CollectedAcks):
    """Acknowledges and records messages of one connection; the next one sends what is left."""

    fetches_per_task = True

    def __init__(
        self,
        channel: Any,
        consumer: Any,
        scheduler: Scheduler,
        lease: Lease,
        tags: list[str],
        ordinary: OrdinaryLimit,
    ) -> None:
        super().__init__(consumer, scheduler)
        self._qos = qos = channel.qos
        self._unacknowledged = Unacknowledged(qos)
        self._ordinary = ordinary
        self._lease = lease
        # Not kombu's own client, which puts the key prefix before some keys only.
        self._client = Redis(connection_pool=channel.pool)
        self._acknowledge = self._client.register_script(script("acknowledge"))
        self._tags = tags
        self._running: list[str] = []
        self._unread: _Unread | None = None
        self._restore_calls = 0
        self._is_retrying = self._has_ended = False
        qos.ack, qos.reject = self.ack, self._reject
        qos.restore_by_tag, qos.restore_unacked = self._restore_by_tag, self._restore_all
        qos.restore_unacked_once = self._restore_all
        qos.restore_visible = self._restore_visible

    def ack(self, tag: str) -> None:
        """Acknowledge one message, soon."""
        self._unacknowledged.free(tag)
        self._ordinary.discard(tag)
        self._tags.append(tag)
        if not self._has_ended:
            self._flush_soon()

    def started(self, task_requests: Sequence[Any]) -> None:
        """Record that a batch runs: if this worker dies, each message has been lost once."""
        if not self._has_ended:
            delivered, done = self._unacknowledged.delivered, self._unacknowledged.done
            tags = (request.message.delivery_tag for request in task_requests)
            self._running += [tag for tag in tags if tag in delivered and tag not in done]
            if self._running:
                self._flush_soon()
        if isinstance(self._consumer.pool, SoloPool):
            self.flush()  # the model blocks the event loop

    def give_back(self, task_requests: Sequence[Any]) -> None:
        """Put the messages of requests that have not run back to the front of their queues."""
        self.flush()  # which ones have run
        given_back = {request.message.delivery_tag for request in task_requests}
        # In the order in which they came, whichever task queues they were in.
        tags = [tag for tag in self._unacknowledged.delivered if tag in given_back]
        self._lease.restorer.restore_not_run(tags, self._lease.keys.owner)
        self._release(tags)
        for request in task_requests:
            request.given_back()

    def stop_receiving(self) -> None:
        """Fetch nothing more, and put back what Redis has sent last."""
        if self.fetches_per_task:
            self._unless_redis_is_away(self._scheduler.fetch.end)

    def give_back_last(self, task_requests: Sequence[Any]) -> None:
        """Put back what has not run, before running batches have ended and the lease ends."""
        self._unless_redis_is_away(partial(self.give_back, task_requests))

    def _unless_redis_is_away(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (RedisError, OSError) as error:
            logger.warning("Could not return messages yet (%s): when this worker ends", error)

    def drop_taken_over(self) -> None:
        """Drop requests that other workers have taken, if the lease was not renewed in time."""
        if not (self._lease.in_doubt or self._lease.is_late):
            return
        try:
            lost = self._unacknowledged.tags() - self._lease.renew()
        except (RedisError, OSError):
            return  # the connection is lost, and all requests will be dropped for that
        if lost:
            self._release(lost)
            self._scheduler.drop(lost)
            drop_limited(self._consumer, lost)

    def was_taken_over(self, request: Any) -> bool:
        """Return whether another worker has taken a request that waited outside of its queue."""
        self.drop_taken_over()
        return request.message.delivery_tag not in self._unacknowledged

    def _release(self, tags: Iterable[str]) -> None:
        """Free the messages' places in the prefetch window."""
        for tag in tags:
            self._unacknowledged.free(tag)
            self._ordinary.discard(tag)

    def _flush_in_pass(self) -> None:
        """Send what has been collected; the reply is read when it comes, and then what follows."""
        self._is_flushing_soon = False
        self._unless_sending(self._begin_sending)

    def _on_reply(self) -> None:
        self._unless_sending(self._read_reply)
        if self._has_more:
            self._flush_soon()

    @property
    def _has_more(self) -> bool:
        return bool(self._tags or self._running) and not (self._has_ended or self._is_retrying)

    def _begin_sending(self) -> None:
        if self._unread is not None or not self._has_more:
            return
        keys, args, tags, running = self._collected()
        pool = self._client.connection_pool
        connection = get_connection(pool)
        try:
            connection.send_command("EVALSHA", self._acknowledge.sha, len(keys), *keys, *args)
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise
        hub, timeout = self._consumer.hub, connection.socket_timeout
        timer = hub.call_later(timeout, self._on_timeout) if timeout else None
        self._unread = _Unread(connection, descriptor_of(connection), tags, running, timer)
        hub.add_reader(self._unread.descriptor, self._on_reply)

    def _on_timeout(self) -> None:
        """Take a connection on which no reply comes for lost, as redis-py does."""
        if self._unread is not None:
            self._unread.connection.disconnect()
            self._on_reply()

    def _read_reply(self) -> None:
        """Read the reply that is still to come, if one is."""
        unread = self._take_unread()
        if unread is None:
            return
        try:
            read_reply(unread.connection)
        except NoScriptError:
            self._send()  # which loads it
        except ResponseError as error:
            self._note_refusal(error)
        except (RedisError, OSError):  # of this connection: sent once more, and waited for
            unread.connection.disconnect()
            self._send()
        else:
            self._forget(unread.tags, unread.running)
        finally:
            self._client.connection_pool.release(unread.connection)

    def _take_unread(self) -> _Unread | None:
        """Return what the event loop waits for, and have it wait no longer."""
        unread, self._unread = self._unread, None
        if unread is not None:
            self._consumer.hub.remove_reader(unread.descriptor)
            if unread.timer is not None:
                unread.timer.cancel()
        return unread

    def _send_collected(self) -> None:
        self._read_reply()
        while not self._has_ended and (self._tags or self._running) and self._send():
            pass

    def _send(self) -> bool:
        """Send what has been collected, and wait for the reply; return whether Redis took it."""
        keys, args, *counts = self._collected()
        try:
            self._acknowledge(keys=keys, args=args)
        except ResponseError as error:
            self._note_refusal(error)
            return False
        self._forget(*counts)
        return True

    def _collected(self) -> tuple[list[str], list[str], int, int]:
        """Return the script's keys and arguments, and how many messages of both kinds they have."""
        keys, tags, running = self._lease.keys, list(self._tags), list(self._running)
        return (
            [keys.index, keys.unacked, keys.owner_of, keys.held],
            ["\n".join(tags), "\n".join(running)],
            len(tags),
            len(running),
        )

    def _forget(self, tags: int, running: int) -> None:
        del self._tags[:tags]
        del self._running[:running]

    def _note_refusal(self, error: ResponseError) -> None:
        logger.warning("Redis refuses acknowledgements (%s): sent again soon", error)
        if not self._is_retrying:
            self._is_retrying = True
            self._consumer.hub.call_later(_RETRY_AFTER, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        self._flush_soon()

    def end(self) -> None:
        """Send nothing more on this connection; the next one sends what is left."""
        self._has_ended = True
        unread = self._take_unread()
        if unread is not None:
            unread.connection.disconnect()
            self._client.connection_pool.release(unread.connection)
        self._unacknowledged.forget()

    def _reject(self, tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 (kombu's signature)
        if not requeue:
            self.ack(tag)
        elif not self._has_ended:  # else it was put back with all others
            self._restore_by_tag(tag, leftmost=True)
            self._release([tag])

    def _restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 (kombu's signature)
        command = "LPUSH" if leftmost else "RPUSH"
        self._lease.restorer.restore([tag], self._lease.keys.owner, command=command)

    def _restore_all(self, *_: Any, **__: Any) -> None:
        """Put all messages back as the channel closes; no error may keep it from closing."""
        try:
            self.flush()
        except (RedisError, OSError) as error:
            logger.warning("Could not acknowledge (%s): sent on the next connection", error)
        self.end()
        self._lease.end()

    def _restore_visible(self, start: int = 0, num: int | None = None, interval: int = 10) -> None:  # noqa: ARG002 (kombu's signature)
        """As kombu's own, but by Redis' clock, and without messages that a live worker holds."""
        self._restore_calls += 1
        if (self._restore_calls - 1) % (interval or 1) == 0 and not self._has_ended:
            self._lease.restorer.restore_expired(self._qos.visibility_timeout, num)
