"""
Writes the messages of requests that must not run again, and refused ones, to a queue.

They are written in a thread: the broker may be away for long, and the event loop must
go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_batch.config import Settings
from celery_batch.protocol import LOSSES
from celery_batch.worker.intake.background_thread import BackgroundThread

__all__ = ["DeadLetters"]

logger = logging.getLogger(__name__)

#: Facts of a delivery, or decoded copies of the body, that are no headers of the message.
_NOT_HEADERS = ("args", "kwargs", "delivery_info", "hostname", "reply_to", "correlation_id")

#: The message header with the reason why a message is in this queue.
_REASON = "batch_reason"

#: Most bytes of messages that wait to be written; the others are dropped.
_MOST_BYTES = 64 << 20


class DeadLetters:
    """Writes copies of messages to the dead-letter queue, if there is one."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._background = BackgroundThread("batch-dead-letters")
        self._waiting = 0
        self._tries = 3
        self._is_closed = False

    @property
    def are_kept(self) -> bool:
        """Whether there is a queue for them."""
        return Settings.of(self._consumer.app).dead_letter_queue is not None

    def write(self, request: Any, error: Exception, then: Callable[[], object]) -> None:
        """Write a copy of a request's message as it came, then call `then` on the event loop."""
        headers = {k: v for k, v in request.request_dict.items() if k not in _NOT_HEADERS}
        self._submit(
            request.body,
            then,
            headers={**headers, LOSSES: request.losses, _REASON: str(error)},
            content_type=request.content_type,
            content_encoding=request.content_encoding,
            correlation_id=request.correlation_id,
            reply_to=request.reply_to,
        )

    def write_refused(
        self, content: bytes, reason: str, then: Callable[[], object], **headers: Any
    ) -> None:
        """Write a refused message, or its body, then call `then` on the event loop."""
        self._submit(
            content,
            then,
            headers={_REASON: reason, **headers},
            content_type="application/octet-stream",
            content_encoding="binary",
        )

    def close(self) -> None:
        """Write the last messages, unless that takes too long; later ones are written at once."""
        self._is_closed = True
        self._background.close()

    def _submit(self, body: Any, then: Callable[[], object], **message: Any) -> None:
        name = Settings.of(self._consumer.app).dead_letter_queue
        if name is None:
            then()
            return
        if self._is_closed:  # the worker shuts down, and its loop may not run again
            self._write(name, body, message)
            then()
            return
        size = len(body)
        if self._waiting and self._waiting + size > _MOST_BYTES:
            logger.error("Could not write a message to %s: too many wait to be written", name)
            then()
            return
        self._waiting += size

        def written() -> None:
            self._waiting -= size
            then()

        write = partial(self._write, name, body, message)
        self._background.submit(write, partial(self._consumer.call_soon, written))

    def _write(self, name: str, body: Any, message: dict[str, Any]) -> None:
        app = self._consumer.app
        try:
            # As Celery would declare it, were it one of the app's own queues.
            queue = app.amqp.queues.get(name) or app.amqp.queues.new_missing(name)
            with app.producer_or_acquire() as producer:
                producer.publish(
                    body,
                    exchange=queue.exchange,
                    routing_key=queue.routing_key,
                    declare=[queue],
                    retry=True,
                    retry_policy={"max_retries": self._tries},
                    **message,
                )
            self._tries = 3
        except Exception as error:  # noqa: BLE001 (the worker goes on)
            self._tries = 1  # the next ones fail sooner, until one can be written
            logger.error("Could not write a message to %s: %.200r", name, error)  # noqa: TRY400
