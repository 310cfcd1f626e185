"""Where messages are kept that nobody may run again: of poisonous items, and refused ones."""

from __future__ import annotations

import logging
from typing import Any

from celery_batch.config import Settings
from celery_batch.worker.request import LOSSES

__all__ = ["keep_dead_letter", "keep_refused"]

logger = logging.getLogger(__name__)

#: Facts of a delivery, or decoded copies of the body, that are no headers of the message.
_NOT_HEADERS = ("args", "kwargs", "delivery_info", "hostname", "reply_to", "correlation_id")

#: The message header that says why a message is here.
_REASON = "batch_reason"


def keep_dead_letter(request: Any, error: Exception) -> None:
    """
    Put a copy of a request's message into the queue for such, if there is one.

    Args:
        request: Celery's request; its body is sent as it came, never decoded.
        error: What its caller is told.
    """
    headers = {k: v for k, v in request.request_dict.items() if k not in _NOT_HEADERS}
    _keep(
        request.app,
        request.body,
        headers={**headers, LOSSES: request.losses, _REASON: str(error)},
        content_type=request.content_type,
        content_encoding=request.content_encoding,
        correlation_id=request.correlation_id,
        reply_to=request.reply_to,
    )


def keep_refused(app: Any, content: bytes, reason: str, **headers: Any) -> None:
    """
    Put what was refused into the queue for such, byte for byte, if there is one.

    Args:
        app: The Celery app; its setting ``batch_dead_letter_queue`` names the queue.
        content: The whole message if it could not be read, else its body.
        reason: Why it was refused.
        headers: More that is known about it.
    """
    _keep(
        app,
        content,
        headers={_REASON: reason, **headers},
        content_type="application/octet-stream",
        content_encoding="binary",
    )


def _keep(app: Any, body: Any, **message: Any) -> None:
    name = Settings.of(app).dead_letter_queue
    if name is None:
        return
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
                retry_policy={"max_retries": 3},
                **message,
            )
    except Exception as error:  # noqa: BLE001 (a letter less must not stop the living)
        logger.error("Could not keep a message in %s: %.200r", name, error)  # noqa: TRY400
