"""Very many tasks queued on Redis in no time: one of Celery's own messages, copied."""

from __future__ import annotations

import base64
import json
from typing import Any

__all__ = ["QueuedCopies"]

_SLICE = 5_000


class QueuedCopies:
    """Copies of one task's message, each with its own id and its own number as the argument."""

    def __init__(self, task: Any) -> None:
        self._client = task.app.backend.client
        self._queue = task.app.conf.task_default_queue
        self._mould = f"{self._queue}.mould"
        result = task.apply_async((0,), routing_key=self._mould, queue=self._mould)
        raw = json.loads(self._client.rpop(self._mould))
        self._body = json.loads(base64.b64decode(raw["body"]))
        self._plain = json.dumps(raw)
        self._marks = (raw["body"], result.id, raw["properties"]["delivery_tag"])
        self._plain = self._plain.replace(self._mould, self._queue)
        result.forget()

    def lay(self, count: int, series: int) -> None:
        """Write copies where no worker looks yet; the number of a series is part of their ids."""
        for first in range(0, count, _SLICE):
            numbers = range(first, min(first + _SLICE, count))
            self._client.lpush(self._mould, *(self._message(number, series) for number in numbers))

    def release(self) -> None:
        """Put them before the workers, all at once."""
        self._client.rename(self._mould, self._queue)

    def left(self) -> int:
        """Return how many are not yet answered and acknowledged."""
        queued, held = self._client.pipeline().llen(self._queue).hlen("unacked").execute()
        return int(queued + held)

    def withdraw(self) -> int:
        """Take away what no worker has read; return how many those were."""
        gone = f"{self._mould}.gone"
        if self._client.exists(self._queue):
            self._client.rename(self._queue, gone)
        withdrawn = self._client.llen(gone)
        self._client.unlink(gone)
        return int(withdrawn)

    def check(self, count: int, series: int) -> None:
        """
        Hold every answer against the right one, and forget it.

        Raises:
            AssertionError: One is missing or wrong.
        """
        for first in range(0, count, _SLICE):
            numbers = range(first, min(first + _SLICE, count))
            keys = [f"celery-task-meta-{_id(number, series)}" for number in numbers]
            for number, value in zip(numbers, self._client.mget(keys), strict=True):
                meta = json.loads(value or "{}")
                if (meta.get("status"), meta.get("result")) != ("SUCCESS", 2 * number):
                    raise AssertionError(f"item {number}: {meta or 'no result'}")
            self._client.unlink(*keys)

    def _message(self, number: int, series: int) -> str:
        body = json.dumps([[number], *self._body[1:]]).encode()
        own = _id(number, series)
        old_body, old_id, old_tag = self._marks
        text = self._plain.replace(old_body, base64.b64encode(body).decode())
        return text.replace(old_id, own).replace(old_tag, own)


def _id(number: int, series: int) -> str:
    return f"{number:08x}-0000-4000-8000-{series:012x}"
