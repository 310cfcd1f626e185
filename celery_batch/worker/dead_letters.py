"""Where messages go that nobody can serve, so that a person can look at them."""

from __future__ import annotations

import logging
from typing import Any

from kombu.entity import Queue

from celery_batch.worker.request import LOSSES

__all__ = ["keep_dead_letter", "keep_refused"]

logger = logging.getLogger(__name__)

#: Facts of a delivery, or decoded copies of the body, that are no headers of the message.
_NOT_HEADERS = ("args", "kwargs", "delivery_info", "hostname", "reply_to", "correlation_id")


def keep_dead_letter(request: Any, queue: str) -> None:
    """
    Put a copy of a request's message in the queue for such.

    Args:
        request: Celery's request; its body is sent as it came, never decoded.
        queue: The queue's name; it is declared if need be.
    """
    headers = {k: v for k, v in request.request_dict.items() if k not in _NOT_HEADERS}
    try:
        with request.app.producer_or_acquire() as producer:
            producer.publish(
                request.body,
                routing_key=queue,
                exchange="",
                declare=[Queue(queue)],
                content_type=request.content_type,
                content_encoding=request.content_encoding,
                headers={**headers, LOSSES: request.losses},
                correlation_id=request.correlation_id,
                reply_to=request.reply_to,
                retry=True,
                retry_policy={"max_retries": 3},
            )
    except Exception:
        logger.exception("Could not keep %s[%s] in %s", request.name, request.id, queue)


def keep_refused(app: Any, content: bytes, reason: str, **headers: Any) -> None:
    """
    Put what was refused into the queue for such, byte for byte, if there is one.

    Args:
        app: The Celery app; its setting ``batch_dead_letter_queue`` names the queue.
        content: The whole message if it could not be read, else its body.
        reason: Why it was refused.
        headers: More that is known about it.
    """
    queue = app.conf.get("batch_dead_letter_queue")
    if not queue:
        return
    try:
        with app.producer_or_acquire() as producer:
            producer.publish(
                content,
                routing_key=queue,
                exchange="",
                declare=[Queue(queue)],
                content_type="application/octet-stream",
                content_encoding="binary",
                headers={"batch_reason": reason, **headers},
                retry=True,
                retry_policy={"max_retries": 3},
            )
    except Exception as error:  # noqa: BLE001 (a letter less must not stop the living)
        logger.error("Could not keep a message in %s: %.200r", queue, error)  # noqa: TRY400
