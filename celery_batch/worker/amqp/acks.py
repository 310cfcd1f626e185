"""Acknowledges many deliveries of RabbitMQ in one frame.

RabbitMQ numbers what it delivers on a channel, from 1, and takes one acknowledgement for
all up to a number.  That is said only where nothing up to it is still to be settled;
whatever is settled out of order is acknowledged by itself.  The first number that is ours
need not be 1: what other workers have answered when this one came up was delivered on the
same channel, and wants no acknowledgement.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from operator import itemgetter
from typing import Any

from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = [
    "AmqpAcks",
    "SettledTags",
]


_first = itemgetter(0)


class SettledTags:
    """
    Numbers of deliveries, kept as stretches without a gap.

    A message that waits for its time holds all those up that come after it, for hours
    perhaps; one by one they would be too many to remember.
    """

    def __init__(self) -> None:
        #: First and last of each, in order; the first stretch begins where all began.
        self._stretches = [[0, 0]]

    def __contains__(self, tag: int) -> bool:
        return self._stretches[self._place(tag) - 1][1] >= tag

    def __len__(self) -> int:
        """Return how many stretches there are."""
        return len(self._stretches)

    @property
    def floor(self) -> int:
        """All up to this number are settled."""
        return self._stretches[0][1]

    def begin(self, tag: int) -> None:
        """
        Take note of the first delivery that is ours to settle.

        Args:
            tag: Its number.
        """
        self._stretches[0][1] = tag - 1

    def add(self, tag: int) -> None:
        """
        Take note that a delivery is settled.

        Args:
            tag: Its number.
        """
        stretches, place = self._stretches, self._place(tag)
        before = stretches[place - 1]
        if before[1] >= tag:
            return
        after = stretches[place] if place < len(stretches) else None
        if after is not None and after[0] == tag + 1:
            after[0] = tag
            if before[1] == tag - 1:
                before[1] = after[1]
                del stretches[place]
        elif before[1] == tag - 1:
            before[1] = tag
        else:
            stretches.insert(place, [tag, tag])

    def _place(self, tag: int) -> int:
        return bisect_right(self._stretches, tag, key=_first)


logger = logging.getLogger(__name__)


class AmqpAcks(RunningMessages):
    """
    Collects acknowledgements and sends them once in a pass of the event loop.

    Args:
        consumer: Celery's consumer, with an event loop, and connected to RabbitMQ; it has
            not begun to consume.
        scheduler: Of the same worker.
    """

    collects = True

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        channel = consumer.task_consumer.channel
        self._ack_now, self._reject_now = channel.basic_ack, channel.basic_reject
        channel.basic_ack, channel.basic_reject = self.ack, self.reject
        self._tags: list[int] = []
        self._settled = SettledTags()
        self._is_flushing_soon = self._is_sending = False
        self._lock = threading.RLock()  # pools may acknowledge on threads
        self._await_first(consumer.task_consumer)

    def _await_first(self, task_consumer: Any) -> None:
        receive = task_consumer._receive_callback  # noqa: SLF001 (before it decodes anything)

        def receive_first(message: Any) -> Any:
            self._settled.begin(message.delivery_tag)
            task_consumer._receive_callback = receive  # noqa: SLF001
            callbacks = task_consumer.channel.callbacks
            for name in [name for name, each in callbacks.items() if each is receive_first]:
                callbacks[name] = receive
            return receive(message)

        task_consumer._receive_callback = receive_first  # noqa: SLF001

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:  # noqa: FBT001, FBT002 (py-amqp's signature)
        """Acknowledge one message, soon."""
        with self._lock:
            if multiple:  # nobody does, who knows only of one
                self._tags += range(self._settled.floor + 1, delivery_tag)
            self._tags.append(delivery_tag)
        self._flush_soon()

    def reject(self, delivery_tag: int, requeue: bool) -> None:  # noqa: FBT001 (py-amqp's signature)
        """Reject one message, now."""
        self._reject_now(delivery_tag, requeue=requeue)
        with self._lock:
            self._settled.add(delivery_tag)

    def flush(self) -> None:
        """Send what has been collected, unless the connection is gone, which then is found lost."""
        self._is_flushing_soon = False
        with self._lock:
            if self._is_sending:  # we are in a signal's handler, on top of who sends this too
                return
            self._is_sending = True
            try:
                while self._tags:
                    tags, self._tags = self._tags, []
                    self._send(sorted({tag for tag in tags if tag not in self._settled}))
            except (*self._consumer.connection_errors, AttributeError) as error:
                logger.warning("Could not acknowledge (%s): RabbitMQ delivers again", error)
            finally:
                self._is_sending = False

    def _send(self, tags: list[int]) -> None:
        for tag in tags:
            self._settled.add(tag)
        together = [tag for tag in tags if tag <= self._settled.floor]
        if together:
            self._ack_now(together[-1], multiple=len(together) > 1)
        for tag in tags[len(together) :]:
            self._ack_now(tag)

    def _flush_soon(self) -> None:
        if not self._scheduler.is_open:
            self.flush()  # nobody will come by later
        elif not self._is_flushing_soon:
            self._is_flushing_soon = True
            self._consumer.hub.call_soon(self.flush)
