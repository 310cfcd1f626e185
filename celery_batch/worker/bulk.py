"""The bulk message path: many messages in one round trip, on Redis and RabbitMQ."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from celery import bootsteps
from celery.utils.functional import noop
from celery.worker.state import maybe_shutdown
from redis.exceptions import NoPermissionError

from celery_batch.compat.kombu import missing_in_redis_channel
from celery_batch.config import Settings
from celery_batch.worker.amqp.acks import AmqpAcks
from celery_batch.worker.amqp.reader import read_together
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.redis.acks import RedisAcks
from celery_batch.worker.redis.fetch import BulkFetch
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["BulkPath"]

logger = logging.getLogger(__name__)


class BulkPath:
    """
    The bulk message path of one consumer, over its connections.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.
        decode: Decodes a message from a Redis list; returns None if it refuses it.
    """

    def __init__(self, consumer: Any, scheduler: Scheduler, decode: Callable[..., Any]) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._decode = decode
        #: Whether this connection's messages are read in bulk.
        self.reads = False
        self._opened = ExitStack()
        self._fetch: BulkFetch | None = None
        #: Delivery tags whose acknowledgements could not be sent.
        self._unsent: list[str] = []
        self._last_owner: str | None = None
        self._has_left = False
        self._connect = consumer.connection_for_read
        consumer.connection_for_read = self._connect_without_sweep

    def open(self) -> None:
        """Make the new connection's channel bulk, if it is one that we know."""
        connection = self._consumer.connection
        if not self._is_on:
            return
        if connection.transport.driver_type == "amqp":
            self.reads = read_together(connection.connection, self._scheduler)
            self._scheduler.running_messages = AmqpAcks(self._consumer, self._scheduler)
        elif connection.transport.driver_type == "redis":
            self._open_redis(self._consumer.task_consumer.channel)

    def _open_redis(self, channel: Any) -> None:
        vars(channel.qos).pop("restore_visible", None)
        if not _is_known(channel):
            return
        try:
            lease = self._take_lease(channel)
        except NoPermissionError as error:
            logger.warning("Redis runs no scripts for us (%s): no bulk, no lease", error)
            return
        scheduler = self._scheduler
        acks = RedisAcks(channel, self._consumer, scheduler, lease, self._unsent)
        scheduler.running_messages = acks
        self._opened.callback(acks.end)
        # First acknowledge what has ended, so that it is not given back; then give back what
        # the last connection held, if that connection could not do so itself.
        acks.flush()
        if self._last_owner is not None:
            lease.restorer.restore_own(self._last_owner)
        self._last_owner = lease.keys.owner
        self._fetch = BulkFetch(channel, self._consumer.hub, lease, scheduler, self._decode)
        self._opened.callback(self._fetch.close)
        self.reads = True

    def close(self) -> None:
        """End the bulk path of a connection that is lost."""
        self._scheduler.running_messages = RunningMessages()
        self._opened.close()
        self._fetch, self.reads = None, False

    def flush(self) -> None:
        """Fetch no more, and send the last acknowledgements."""
        if self._fetch is not None:
            self._fetch.close()
        self._scheduler.running_messages.flush()

    def _connect_without_sweep(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, and keep kombu from a sweep by this host's clock before ours is in place."""
        connection = self._connect(*args, **kwargs)
        if self._is_on and connection.transport.driver_type == "redis":
            for channel in connection.transport.cycle._channels:  # noqa: SLF001
                channel.qos.restore_visible = noop
        return connection

    @property
    def _is_on(self) -> bool:
        consumer = self._consumer
        return bool(consumer.hub and consumer.app.conf.get("batch_bulk", True))

    def _take_lease(self, channel: Any) -> Lease:
        consumer, scheduler = self._consumer, self._scheduler

        def in_doubt() -> None:
            consumer.hub.call_soon(scheduler.running_messages.drop_taken_over)

        seconds = Settings.of(consumer.app).lease
        lease = Lease(channel, consumer.hostname, seconds, in_doubt)
        self._opened.callback(lease.end)
        lease.on_shutdown_without_redis = scheduler.kill_running
        lease.before_refusal = self._leave_retries
        lease.open()
        return lease

    def _leave_retries(self) -> None:
        """Shut down at once, unless that has begun: Celery tries some commands again for ever."""
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and self._consumer.blueprint.state == bootsteps.RUN and not self._has_left:
            self._has_left = True
            maybe_shutdown()


def _is_known(channel: Any) -> bool:
    missing = missing_in_redis_channel(channel)
    if missing or not channel.ack_emulation:
        logger.warning(
            "this kombu has no %s: messages are read and acknowledged singly",
            ", ".join(missing) or "acknowledgements",
        )
        return False
    return True
