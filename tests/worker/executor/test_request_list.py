"""Which calls of a batch of a `Batches` task are known to have an end."""

from __future__ import annotations

import weakref
from typing import Any

from celery import Celery, signals

from celery_batch.worker.executor.request_list import _KnownEnds


def test_batches_leave_nothing_behind() -> None:
    """The receiver of publications is gone after each batch, with all that Celery keeps for it."""
    app = Celery("shop", set_as_current=False)

    @app.task(name="shop.list", shared=False)
    def send_again(requests: list[Any]) -> None:
        """Send calls again."""

    ends = _KnownEnds()
    finalizers = len(weakref.finalize._registry)
    for _ in range(10):
        with ends.noted(send_again, shown=False) as noted:
            signals.after_task_publish.send(sender="shop.list", headers={"id": "a"})
        signals.after_task_publish.send(sender="shop.list", headers={"id": "b"})

    assert ["a"] == list(noted)
    assert len(weakref.finalize._registry) <= finalizers
