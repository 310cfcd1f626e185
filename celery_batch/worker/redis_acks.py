"""Many acknowledgements in one round trip, where kombu makes one for each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

__all__ = ["BulkAcks"]


class BulkAcks:
    """
    Collects acknowledgements and sends them once in a pass of the event loop.

    They are late by less than a pass, so delivery stays at least once.

    Args:
        channel: Kombu's Redis channel.
        consumer: Celery's consumer, with an event loop.
        tags: What could not be sent on an earlier connection; the tags are the
            messages' own and stay good.
    """

    def __init__(self, channel: Any, consumer: Any, tags: list[str]) -> None:
        self._qos = channel.qos
        self._consumer = consumer
        self._tags = tags
        self._reject_one = self._qos.reject
        self._restore = self._qos.restore_unacked_once
        self._qos.ack = self.ack
        self._qos.reject = self._reject
        self._qos.restore_unacked_once = self._restore_after_flush
        if tags:
            consumer.hub.call_soon(self.flush)

    @property
    def unsent(self) -> list[str]:
        """What has not reached Redis yet."""
        return self._tags

    def ack(self, tag: str) -> None:
        """Acknowledge one message, soon."""
        self._qos._quick_ack(tag)  # noqa: SLF001 (frees its place in the prefetch window)
        self._tags.append(tag)
        if not self._consumer.batch_lanes.is_open:
            self.flush()  # nobody will come by later
        elif len(self._tags) == 1:
            self._consumer.hub.call_soon(self.flush)

    def flush(self) -> None:
        """Send what has been collected; what cannot be sent is kept for the next connection."""
        tags, self._tags = self._tags, []
        if not tags:
            return
        try:
            with self._qos.pipe_or_acquire() as pipe:
                pipe.zrem(self._qos.unacked_index_key, *tags)
                pipe.hdel(self._qos.unacked_key, *tags)
                pipe.execute()
        except Exception:
            self._tags = tags + self._tags
            raise

    def _reject(self, tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 (kombu's signature)
        self.flush()
        self._reject_one(tag, requeue=requeue)

    def _restore_after_flush(self, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):  # where Redis is gone, what was acknowledged waits with us
            self.flush()
        return self._restore(*args, **kwargs)
