"""Connections of result backends, which Celery leaves to the garbage collector."""

from __future__ import annotations

from contextlib import suppress

from celery import Celery
from celery.backends.redis import RedisBackend
from celery.utils.functional import noop

__all__ = ["close_backend"]


def close_backend(app: Celery) -> None:
    """Close what this thread's result backend of an app has opened."""
    if consumer := getattr(app.backend, "result_consumer", None):
        with suppress(AttributeError):  # Celery's for RPC stops only what has begun
            consumer.stop()
        consumer.cancel_for = noop  # results that are forgotten later would connect again
    if isinstance(app.backend, RedisBackend):
        app.backend.client.connection_pool.disconnect()
