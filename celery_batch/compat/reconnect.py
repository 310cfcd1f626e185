"""Reconnects soon after the broker is back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["reconnect_soon"]

#: Seconds between two tries: at first, and at most.  Kombu's own pauses grow by 2 s
#: each time, up to 30, while callers wait.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 2.0

#: So many of our tries take as long as one of kombu's, once its pauses have grown.
_TRIES_FOR_ONE = 15


def reconnect_soon(consumer: Any) -> None:
    """
    Have a consumer look for its broker at least every other second.

    Args:
        consumer: Celery's; it gives up after as long a time as ever.
    """
    connect = consumer.ensure_connected

    def ensure_connected(connection: Any) -> Any:
        connection.ensure_connection = partial(_try_often, connection.ensure_connection)
        return connect(connection)

    consumer.ensure_connected = ensure_connected


def _try_often(
    ensure: Callable[..., Any], errback: Any, max_retries: int | None = None, **options: Any
) -> Any:
    """Connect as kombu does, with shorter pauses, and give up no sooner."""
    return ensure(
        errback,
        max_retries and max_retries * _TRIES_FOR_ONE,
        interval_start=_FIRST_PAUSE,
        interval_step=_FIRST_PAUSE,
        interval_max=_LONGEST_PAUSE,
        **options,
    )
