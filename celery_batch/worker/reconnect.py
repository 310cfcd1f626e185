"""Coming back soon after the broker does."""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = ["reconnect_soon"]

#: Seconds between two tries: at first, and at most.  Kombu's own pauses grow by 2 s
#: each time, up to 30, while callers wait.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 2.0


def reconnect_soon(consumer: Any) -> None:
    """
    Have a consumer look for its broker at least every other second.

    Args:
        consumer: Celery's; its settings about retries hold as ever.
    """
    connect = consumer.ensure_connected

    def ensure_connected(connection: Any) -> Any:
        connection.ensure_connection = partial(
            connection.ensure_connection,
            interval_start=_FIRST_PAUSE,
            interval_step=_FIRST_PAUSE,
            interval_max=_LONGEST_PAUSE,
        )
        return connect(connection)

    consumer.ensure_connected = ensure_connected
