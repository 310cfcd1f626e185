"""The callers: 32 threads that send items, whatever happens to the broker meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

import numpy as np
from celery import Celery

from celery_batch import BatchTask
from celery_batch.payloads.arguments import with_stored_values

__all__ = ["Clients", "Item"]

THREADS = 32

#: Each of so many items has a large array, of so many numbers, that is stored beside its message.
_EACH, _NUMBERS = 4, 16_384


@dataclass(slots=True)
class Item:
    """
    One request of a caller, and how its sending went.

    Args:
        number: What is asked; no two are the same.
        mood: "good", or how it harms its batch: "raise" or "exit".
        id: The task's id, the same on every try to send it.
        accepted: The broker has taken it.
        tries: Calls to send it: when each began and ended, in seconds.
    """

    number: int
    mood: str = "good"
    id: str = field(default_factory=lambda: str(uuid4()))
    accepted: bool = False
    tries: list[tuple[float, float]] = field(default_factory=list)

    def was_uncertain(self, since: float, until: float) -> bool:
        """Say whether it may have been sent twice: a try failed, or was on in this span."""
        overlaps = any(begun <= until and ended >= since for begun, ended in self.tries)
        return len(self.tries) > 1 or overlaps


class Clients:
    """
    Send from 32 threads, each item until the broker takes it or the patience ends.

    They use Celery's own ``send_task`` with its own retries.  They have no result
    backend: answers are read by `tests.faults.answers`, which no fault can confuse.

    Args:
        url: The broker as callers know it.
        conf: Settings of the callers' app.
        patience: Seconds after which a sender gives an item up.
        with_arrays: Whether every fourth item has a large array.
    """

    def __init__(
        self, url: str, conf: dict[str, Any], patience: float, *, with_arrays: bool = True
    ) -> None:
        self.app = Celery("callers", broker=url, set_as_current=False)
        self.app.conf.update(conf, broker_pool_limit=THREADS, result_backend=None)
        self._task = self.app.task(base=BatchTask, name="faults.double", shared=False)(_double)
        self._patience = patience
        self._with_arrays = with_arrays
        self._threads: list[threading.Thread] = []

    def send(self, items: Iterable[Item]) -> None:
        """Begin to send; return at once."""
        waiting: SimpleQueue[Item] = SimpleQueue()
        for item in items:
            waiting.put(item)
        threads = [
            threading.Thread(target=self._send_all, args=(waiting,), daemon=True)
            for _ in range(THREADS)
        ]
        self._threads += threads
        for thread in threads:
            thread.start()

    def join(self) -> None:
        """Return when every item has been sent or given up."""
        for thread in self._threads:
            thread.join(2 * self._patience)

    def _send_all(self, waiting: SimpleQueue[Item]) -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except Empty:
                return
            deadline = time.monotonic() + self._patience
            while not self._send(item) and time.monotonic() < deadline:
                time.sleep(0.1)

    def _send(self, item: Item) -> bool:
        begun = time.monotonic()
        try:
            is_large = self._with_arrays and item.number % _EACH == 0
            load = np.full(_NUMBERS, item.number, "f4") if is_large else None
            args = item.number, item.mood, load
            args, _, options = with_stored_values(self._task, args, None, {"task_id": item.id})
            self.app.send_task("faults.double", args, **options)
        except Exception:  # noqa: BLE001 (whatever it was, the caller tries again)
            return False
        else:
            item.accepted = True
        finally:
            item.tries.append((begun, time.monotonic()))
        return True


def _double(x: Any, mood: Any, load: Any) -> Any:
    raise NotImplementedError  # it runs in workers
