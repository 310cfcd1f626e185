"""
Acknowledges many deliveries of RabbitMQ in one frame.

RabbitMQ numbers the deliveries of a channel, and takes one acknowledgement for all up to a
number.  That is sent only if no delivery up to it is still open; a message that is done
before an earlier one is acknowledged by itself.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

from celery_batch.worker.dispatch.running_messages import CollectedAcks
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["AmqpAcks"]

logger = logging.getLogger(__name__)


class AmqpAcks(CollectedAcks):
    """Acknowledges consecutive deliveries together; made before the connection consumes."""

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        super().__init__(consumer, scheduler)
        channel = consumer.task_consumer.channel
        self._consume_now = channel.basic_consume
        self._ack_now, self._reject_now = channel.basic_ack, channel.basic_reject
        channel.basic_consume = self._consume
        channel.basic_ack, channel.basic_reject = self.ack, self.reject
        self._tags: list[int] = []
        #: Tags of deliveries that are neither acknowledged nor rejected, in ascending order; as
        #: many as the prefetch allows.
        self._open: dict[int, None] = {}

    def _consume(
        self, *args: Any, callback: Any = None, no_ack: bool = False, **options: Any
    ) -> Any:
        if callback is not None and not no_ack:
            callback = partial(self._receive, callback)
        return self._consume_now(*args, callback=callback, no_ack=no_ack, **options)

    def _receive(self, callback: Any, message: Any) -> Any:
        with self._lock:
            self._open[message.delivery_tag] = None
        return callback(message)

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:  # noqa: FBT001, FBT002 (py-amqp's signature)
        """Acknowledge one message, soon."""
        with self._lock:
            if delivery_tag not in self._open:  # from `basic_get`, for which RabbitMQ counts, too
                self._ack_now(delivery_tag)
                return
            if multiple:
                self._tags += [tag for tag in self._open if tag < delivery_tag]
            self._tags.append(delivery_tag)
        self._flush_soon()

    def reject(self, delivery_tag: int, requeue: bool) -> None:  # noqa: FBT001 (py-amqp's signature)
        """Reject one message, now."""
        self._reject_now(delivery_tag, requeue=requeue)
        with self._lock:
            self._open.pop(delivery_tag, None)

    def _send_collected(self) -> None:
        try:
            while self._tags:
                tags, self._tags = self._tags, []
                self._send(sorted(self._open.keys() & tags))
        except (*self._consumer.connection_errors, AttributeError) as error:
            # Celery itself notices a lost connection.
            logger.warning("Could not acknowledge (%s): RabbitMQ delivers again", error)

    def _send(self, tags: list[int]) -> None:
        for tag in tags:
            del self._open[tag]
        first_open = next(iter(self._open), math.inf)
        together = [tag for tag in tags if tag < first_open]
        if together:
            self._ack_now(together[-1], multiple=len(together) > 1)
        for tag in tags[len(together) :]:
            self._ack_now(tag)
