"""Where the message path can be made bulk, and the switch to leave it alone."""

from __future__ import annotations

import logging
from typing import Any

from celery_batch.worker.redis_acks import BulkAcks
from celery_batch.worker.redis_fetch import BulkFetch

__all__ = ["BulkPath"]

logger = logging.getLogger(__name__)

#: What we rely on in kombu's Redis channel and its QoS.
_CHANNEL = ("_brpop_read", "_queue_cycle", "_q_for_pri", "active_queues", "global_keyprefix")
_QOS = ("ack", "append", "pipe_or_acquire", "restore_by_tag", "unacked_key", "unacked_index_key")


class BulkPath:
    """
    The bulk message path of one consumer, over its connections.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._acks: BulkAcks | None = None

    def open(self) -> None:
        """Make the new connection's channel bulk, if it is one that we know."""
        consumer = self._consumer
        unsent = self._acks.unsent if self._acks else []
        self._acks = None
        if consumer.hub is None or not consumer.app.conf.get("batch_bulk", True):
            return
        if consumer.connection.transport.driver_type != "redis":
            return
        channel = consumer.task_consumer.channel
        missing = [name for name in _CHANNEL if not hasattr(channel, name)]
        missing += [name for name in _QOS if not hasattr(channel.qos, name)]
        if missing or not channel.ack_emulation:
            logger.warning(
                "this kombu has no %s: messages are read and acknowledged singly",
                ", ".join(missing) or "acknowledgements",
            )
            return
        self._acks = BulkAcks(channel, consumer, unsent)
        BulkFetch(channel, consumer.batch_lanes.room, consumer.batch_gate.read)

    def flush(self) -> None:
        """Send what is still to be acknowledged."""
        if self._acks is not None:
            self._acks.flush()
