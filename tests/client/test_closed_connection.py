"""A connection that another thread closes while its answer is awaited."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_batch.client.publish.transport import _await_answer


def _can_read(_seconds: float) -> bool:
    raise ValueError("I/O operation on closed file.")  # as redis-py's buffer says it


def test_a_connection_that_is_closed_meanwhile_is_lost():
    """The caller sees an error of the broker, which is tried again, and not one of a buffer."""
    connection = SimpleNamespace(socket_timeout=None, can_read=_can_read)

    with pytest.raises(RedisConnectionError, match="was closed while it was read"):
        _await_answer(connection, time.monotonic() + 20.0, 0)
