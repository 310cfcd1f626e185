"""Where messages go that nobody can serve, so that a person can look at them."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["keep"]

logger = logging.getLogger(__name__)

#: Tries of the broker, and seconds between them; the event loop stands still meanwhile.
_RETRY = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}


def keep(app: Any, content: bytes, reason: str, **headers: Any) -> None:
    """
    Put something into the dead-letter queue, byte for byte, if there is one.

    Args:
        app: The Celery app; its setting ``batch_dead_letter_queue`` names the queue.
        content: The whole message if it could not be read, else its body.
        reason: Why nobody can serve it.
        headers: More that is known about it.
    """
    name = app.conf.get("batch_dead_letter_queue")
    if not name:
        return
    # Not through `queues[name]`, which would have this worker consume it one day.
    queue = app.amqp.queues.get(name) or app.amqp.queues.new_missing(name)
    try:
        with app.amqp.producer_pool.acquire(block=True) as producer:
            producer.publish(
                content,
                exchange=queue.exchange,
                routing_key=queue.routing_key,
                declare=[queue],
                content_type="application/octet-stream",
                content_encoding="binary",
                headers={"batch_reason": reason, **headers},
                retry=True,
                retry_policy=_RETRY,
            )
    except Exception as error:  # noqa: BLE001 (a letter less must not stop the living)
        logger.error("Could not keep a message in %s: %.200r", name, error)  # noqa: TRY400
