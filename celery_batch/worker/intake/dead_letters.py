"""

Keeps the messages of requests that must not run again, and refused ones.

They are written on a thread: the broker may be away for long, and the event loop has
others to serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_batch.config import Settings
from celery_batch.worker.intake.background_thread import BackgroundThread
from celery_batch.worker.intake.request import LOSSES

__all__ = ["DeadLetters"]

logger = logging.getLogger(__name__)

#: Facts of a delivery, or decoded copies of the body, that are no headers of the message.
_NOT_HEADERS = ("args", "kwargs", "delivery_info", "hostname", "reply_to", "correlation_id")

#: The message header that says why a message is here.
_REASON = "batch_reason"

#: Bytes of messages that wait to be written; what comes behind so many is not kept.
_MOST_BYTES = 64 << 20


class DeadLetters:
    """
    Keeps copies of messages in the queue for such, if there is one.

    Args:
        consumer: Celery's consumer; its app's ``batch_dead_letter_queue`` names the queue.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._background = BackgroundThread("batch-dead-letters")
        self._waiting = 0
        self._tries = 3
        self._is_closed = False

    def keep(self, request: Any, error: Exception, then: Callable[[], object]) -> None:
        """
        Put a copy of a request's message into the queue.

        Args:
            request: Celery's request; its body is sent as it came, never decoded.
            error: What its caller is told.
            then: Called on the event loop when that is done, or cannot be done.
        """
        headers = {k: v for k, v in request.request_dict.items() if k not in _NOT_HEADERS}
        self._keep(
            request.body,
            then,
            headers={**headers, LOSSES: request.losses, _REASON: str(error)},
            content_type=request.content_type,
            content_encoding=request.content_encoding,
            correlation_id=request.correlation_id,
            reply_to=request.reply_to,
        )

    def keep_refused(
        self, content: bytes, reason: str, then: Callable[[], object], **headers: Any
    ) -> None:
        """
        Put what was refused into the queue, byte for byte.

        Args:
            content: The whole message if it could not be read, else its body.
            reason: Why it was refused.
            then: Called on the event loop when that is done, or cannot be done.
            headers: More that is known about it.
        """
        self._keep(
            content,
            then,
            headers={_REASON: reason, **headers},
            content_type="application/octet-stream",
            content_encoding="binary",
        )

    def close(self) -> None:
        """Write the last of them, unless that takes too long; what comes later, at once."""
        self._is_closed = True
        self._background.close()

    def _keep(self, body: Any, then: Callable[[], object], **message: Any) -> None:
        name = Settings.of(self._consumer.app).dead_letter_queue
        if name is None:
            then()
            return
        if self._is_closed:  # the worker shuts down, and its loop may not come by again
            self._write(name, body, message)
            then()
            return
        size = len(body)
        if self._waiting and self._waiting + size > _MOST_BYTES:
            logger.error("Could not keep a message in %s: too many wait to be written", name)
            then()
            return
        self._waiting += size

        def go_on() -> None:
            self._waiting -= size
            then()

        write = partial(self._write, name, body, message)
        self._background.soon(write, partial(self._consumer.call_soon, go_on))

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
        except Exception as error:  # noqa: BLE001 (a letter less must not stop the living)
            self._tries = 1  # those behind it wait for less, until one can be written
            logger.error("Could not keep a message in %s: %.200r", name, error)  # noqa: TRY400
