"""A prefetch that grows with a batch task that nobody expected."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from celery_batch.compat.kombu import consume_again


def test_no_queue_is_without_a_consumer(monkeypatch: pytest.MonkeyPatch):
    """A queue that deletes itself does so with its last consumer, and with all that waits in it."""
    consumers: Counter[str] = Counter()
    least: list[int] = []
    with Connection("memory://") as connection:
        channel: Any = connection.channel()
        queues = [Queue("slow", auto_delete=True), Queue("other")]
        tasks = Consumer(channel, queues)
        tasks.consume()
        tags = {tag: name for name, tag in tasks._active_tags.items()}
        consumers.update(tags.values())
        consume, cancel = channel.basic_consume, channel.basic_cancel

        def basic_consume(queue: str, *args: Any, **options: Any) -> Any:
            consumers[queue] += 1
            return consume(queue, *args, **options)

        def basic_cancel(tag: str) -> Any:
            consumers[tags[tag]] -= 1
            least.append(min(consumers.values()))
            return cancel(tag)

        monkeypatch.setattr(channel, "basic_consume", basic_consume)
        monkeypatch.setattr(channel, "basic_cancel", basic_cancel)
        consume_again(tasks)
        monkeypatch.undo()

        assert [1, 1] == least
        assert {"slow": 1, "other": 1} == consumers
        assert tags.keys().isdisjoint(tasks._active_tags.values())
