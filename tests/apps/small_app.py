"""What the small apps of the tests share: their settings and their memory."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import redis
from celery import Celery


def small_app(name: str, *, config: str = "", **options: Any) -> Celery:
    """Return an app with the broker, backend and settings of the environment."""
    app = Celery(name, **options)
    if config:
        app.config_from_object(config, namespace="CELERY")
    app.conf.update(
        broker_connection_retry_on_startup=True,
        result_expires=600,
        **json.loads(os.environ.get("SMALL_APP_CONF", "{}")),
    )
    return app


def remember(kind: str, *facts: Any) -> None:
    """Keep facts for the tests to read."""
    with redis.Redis(unix_socket_path=os.environ["SMALL_APP_MEMORY"]) as client:
        client.rpush(f"stage:{kind}", *map(json.dumps, facts))


def at(place: str, *others: str, timeout: float = 20.0) -> bool:
    """Record a place; return whether the other places are reached before the timeout."""
    with redis.Redis(unix_socket_path=os.environ["SMALL_APP_MEMORY"]) as client:
        client.sadd("stage:places", place)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if all(client.sismember("stage:places", other) for other in others):
                return True
            time.sleep(0.01)
    return False


def go_on(client: redis.Redis, place: str) -> None:
    """Record a place that others wait for."""
    client.sadd("stage:places", place)


def where() -> str:
    """Return which thread this is: that of the models, or one beside it."""
    is_beside = threading.current_thread().name.startswith("batch-worker")
    return "beside" if is_beside else "models"
