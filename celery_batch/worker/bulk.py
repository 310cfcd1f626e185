"""Which parts of the message path can be made bulk, and the switch to turn them off."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.utils.functional import noop
from celery.worker.state import maybe_shutdown
from redis.exceptions import NoPermissionError

from celery_batch.config import Settings
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.redis.acks import RedisAcks
from celery_batch.worker.redis.fetch import BulkFetch
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["BulkPath"]

logger = logging.getLogger(__name__)

#: What we rely on in kombu's Redis channel and its QoS.
_CHANNEL = (
    *("_brpop_start", "_brpop_read", "_in_poll", "_flush_brpop_reauth", "_queue_cycle"),
    *("_q_for_pri", "_lookup", "_get_message_priority", "active_queues", "global_keyprefix"),
)
_QOS = (
    *("ack", "append", "reject", "restore_by_tag", "restore_unacked", "restore_visible"),
    *("unacked_key", "unacked_index_key", "visibility_timeout", "_delivered", "_dirty"),
)


class BulkPath:
    """
    The bulk message path of one consumer, over its connections.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.
        read: Decodes a message from a Redis list; None if it refuses it.
    """

    def __init__(self, consumer: Any, scheduler: Scheduler, read: Callable[..., Any]) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._read = read
        self._unsent: list[str] = []
        self._acks: RedisAcks | None = None
        self._fetch: BulkFetch | None = None
        self._lease: Lease | None = None
        self._last_owner: str | None = None
        self._has_left = False
        self._connect = consumer.connection_for_read
        consumer.connection_for_read = self._connect_without_sweep

    def open(self) -> None:
        """Make the new connection's channel bulk, if it is one that we know."""
        channel = self._known_channel()
        if channel is None:
            return
        try:
            lease = self._take_lease(channel)
        except NoPermissionError as error:
            logger.warning("Redis runs no scripts for us (%s): no bulk, no lease", error)
            return
        self._acks = RedisAcks(channel, self._consumer, self._scheduler, lease, self._unsent)
        # First what is done, so that it is not given back; then what the last
        # connection held, where it could not give that back itself.
        self._acks.flush()
        if self._last_owner is not None:
            lease.restorer.restore_own(self._last_owner)
        self._last_owner = lease.keys.owner
        scheduler = self._scheduler
        self._fetch = BulkFetch(channel, self._consumer.hub, lease, scheduler, self._read)
        scheduler.running_messages = self._acks

    @property
    def is_open(self) -> bool:
        """Whether this connection's messages are read in bulk."""
        return self._fetch is not None

    def close(self) -> None:
        """Let go of a connection that is gone."""
        self._scheduler.running_messages = RunningMessages()
        if self._fetch is not None:
            self._fetch.close()
        if self._acks is not None:
            self._acks.end()
        if self._lease is not None:
            self._lease.end()
        self._fetch = self._acks = self._lease = None

    def flush(self) -> None:
        """Send what is still to be acknowledged, and wait for nothing more."""
        if self._fetch is not None:
            self._fetch.close()
        if self._acks is not None:
            self._acks.flush()

    def _connect_without_sweep(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, and keep kombu from a sweep by this host's clock before ours is in place."""
        connection = self._connect(*args, **kwargs)
        if self._is_wanted(connection):
            for channel in connection.transport.cycle._channels:  # noqa: SLF001
                channel.qos.restore_visible = noop
        return connection

    def _is_wanted(self, connection: Any) -> bool:
        consumer = self._consumer
        is_redis = connection.transport.driver_type == "redis"
        return bool(is_redis and consumer.hub and consumer.app.conf.get("batch_bulk", True))

    def _known_channel(self) -> Any:
        consumer = self._consumer
        if not self._is_wanted(consumer.connection):
            return None
        channel = consumer.task_consumer.channel
        vars(channel.qos).pop("restore_visible", None)
        missing = [name for name in _CHANNEL if not hasattr(channel, name)]
        missing += [name for name in _QOS if not hasattr(channel.qos, name)]
        if missing or not channel.ack_emulation:
            logger.warning(
                "this kombu has no %s: messages are read and acknowledged singly",
                ", ".join(missing) or "acknowledgements",
            )
            return None
        return channel

    def _take_lease(self, channel: Any) -> Lease:
        consumer = self._consumer

        def in_doubt() -> None:
            consumer.hub.call_soon(self._scheduler.running_messages.drop_lost)

        seconds = Settings.of(consumer.app).lease
        lease = self._lease = Lease(channel, consumer.hostname, seconds, in_doubt)
        lease.on_shutdown_without_redis = self._scheduler.kill_running
        lease.before_refusal = self._leave_retries
        lease.open()
        return lease

    def _leave_retries(self) -> None:
        """Shut down at once, unless that has begun: Celery tries some commands again for ever."""
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and self._consumer.blueprint.state == bootsteps.RUN and not self._has_left:
            self._has_left = True
            maybe_shutdown()
