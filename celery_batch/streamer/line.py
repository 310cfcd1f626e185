"""
The line of one prefix: the queue where its items wait, and the task that they are.

Items are ordinary Celery tasks with one argument, so a client that knows nothing of
us may send them too: ``app.send_task("streamer.predict", (item,), queue="streamer")``,
or with the prefix ``bert``: ``"streamer.bert.predict"`` to the queue ``"streamer.bert"``.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_batch.errors import ConfigurationError
from celery_batch.streamer.redis_address import connection_settings

__all__ = ["app_for", "queue_of", "task_of"]

#: Seconds after which a stored answer goes; clients are told of it when it is there.
ANSWERS_KEPT = 3600

_QUEUE = "streamer"


def queue_of(prefix: str) -> str:
    """
    Return the name of a prefix's queue.

    Raises:
        ConfigurationError: The prefix is no text.
    """
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix: must be a text, got {prefix!r}")
    return f"{_QUEUE}.{prefix}" if prefix else _QUEUE


def task_of(prefix: str) -> str:
    """
    Return the name of the task that answers a prefix's items.

    Raises:
        ConfigurationError: The prefix is no text.
    """
    return f"{queue_of(prefix)}.predict"


def app_for(redis_broker: str, **settings: Any) -> Celery:
    """
    Return a new Celery app on a Redis; it does not become the process's current one.

    Args:
        redis_broker: As for `connection_settings`.
        settings: More Celery settings.

    Raises:
        ConfigurationError: It is no address of a Redis.
    """
    place = connection_settings(redis_broker)
    url = place["broker_url"]
    app = Celery(_QUEUE, broker=url, set_as_current=False)
    app.conf.update(
        place,
        # Whoever else can write to this Redis must not be able to run code in us.
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        result_expires=ANSWERS_KEPT,
        broker_connection_retry_on_startup=True,
        **settings,
    )
    app.backend_cls = url  # which wins over CELERY_RESULT_BACKEND, as broker_read_url does
    app.finalize()
    return app
