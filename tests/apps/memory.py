"""
What the tests' models remember, for the tests to read: lists of facts in a Redis.

The Redis is named by ``TESTS_MEMORY``, and is the broker's where nothing is said.
"""

from __future__ import annotations

import json
import os
from urllib.parse import urlsplit

import redis


def memory() -> redis.Redis:
    """Return a client for what the tasks remember."""
    url = os.environ.get("TESTS_MEMORY") or os.environ["CELERY_BROKER_URL"]
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        return redis.Redis(unix_socket_path=parts.path)
    return redis.Redis.from_url(url)


def patient_cache(url: str) -> str:
    """Return the URL of a Redis with a long time-out: on a busy machine its replies are late."""
    return f"{url}{'&' if '?' in url else '?'}socket_timeout=10"


def remember(kind: str, **facts: object) -> None:
    """Keep a fact for the tests to read."""
    client = memory()
    client.rpush(f"shop:{kind}", json.dumps({"pid": os.getpid(), **facts}))
    client.close()


def recall(kind: str) -> list[dict]:
    """Return the facts kept so far."""
    client = memory()
    facts = [json.loads(fact) for fact in client.lrange(f"shop:{kind}", 0, -1)]
    client.close()
    return facts
