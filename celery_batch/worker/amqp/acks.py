"""
Acknowledges many deliveries of RabbitMQ in one frame.

RabbitMQ numbers the deliveries of a channel, and takes one acknowledgement for all up to a
number.  That is sent only if no delivery up to it is still open; a message that is done
before an earlier one is acknowledged by itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from kombu.common import ignore_errors

from celery_batch.compat.amqp import return_not_run
from celery_batch.worker.dispatch.running_messages import CollectedAcks
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["AmqpAcks"]

logger = logging.getLogger(__name__)


class AmqpAcks(CollectedAcks):
    """Acknowledges consecutive deliveries together; made before the connection consumes."""

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        super().__init__(consumer, scheduler)
        self._channel = channel = consumer.task_consumer.channel
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

    def give_back(self, task_requests: Sequence[Any]) -> None:
        """Return the messages of these requests of Celery's, which did not run."""
        for request in task_requests:
            with self._lock:
                return_not_run(self._channel, request.message.delivery_tag)
                self._open.pop(request.message.delivery_tag, None)
            request.given_back()

    def stop_receiving(self) -> None:
        """Cancel the consumers, as Celery does a moment later: else RabbitMQ delivers again."""
        ignore_errors(self._consumer, self._consumer.task_consumer.cancel)

    def give_back_last(self, task_requests: Sequence[Any]) -> None:
        """Return what has not run, before running batches have ended and the channel is closed."""
        ignore_errors(self._consumer, self.give_back, task_requests)

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
