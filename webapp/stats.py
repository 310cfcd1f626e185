"""What the workers do at this moment, for the page's one line."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from typing_extensions import TypedDict

from celery_batch.client.backpressure import BrokerUnreachable
from celery_batch.cluster.control_client import ControlClient
from celery_batch.cluster.state import ClusterState
from celery_batch.worker.scheduling.routing import queue_of
from webapp import tasks

__all__ = ["Stats", "stats"]

#: Seconds over which rates are averaged, for which an answer is good, and to listen to workers.
_WINDOW, _FRESH, _LISTEN = 3.0, 0.8, 0.3


class Stats(TypedDict):
    """The tasks' names, and what their workers do."""

    task: str
    naive_task: str | None
    image_task: str | None
    examples: list[str]
    workers: int
    waiting: int
    items_per_second: float
    mean_batch_size: float | None


class _Monitor:
    """Asks all workers for their numbers, once for all that want to know."""

    def __init__(self) -> None:
        queues = {task.name: queue_of(tasks.app, task) for task in tasks.TASKS}
        self._cluster_state = ClusterState(queues, _WINDOW)
        self._queues = {*queues.values()}
        self._control_client = ControlClient(tasks.app)
        self._last = float("-inf")
        # In other threads than the first, kombu waits for replies that go to another queue.
        self._thread = ThreadPoolExecutor(1, "stats")

    def stats(self) -> Stats:
        """Return the numbers of the last seconds."""
        return self._thread.submit(self._stats).result()

    def _stats(self) -> Stats:
        now = time.monotonic()
        if now - self._last >= _FRESH:
            self._cluster_state.add(self._control_client.snapshot(self._queues, _LISTEN))
            self._last = time.monotonic()
        if self._cluster_state.error:
            raise BrokerUnreachable(self._cluster_state.error)
        return _described(self._cluster_state)


def _described(picture: ClusterState) -> Stats:
    names = {task.name for task in tasks.TASKS}
    found = [each for each in picture.tasks() if each.name in names]
    workers = [each for each in picture.workers() if each.state != "silent"]
    depths = {each.queue: each.messages or 0 for each in found}
    rows = sum(each.rows_per_second or 0.0 for each in found)
    batches = sum(each.batches_per_second or 0.0 for each in found)
    return Stats(
        task=tasks.TASK.name,
        naive_task=tasks.NAIVE_TASK and tasks.NAIVE_TASK.name,
        image_task=tasks.IMAGE_TASK and tasks.IMAGE_TASK.name,
        examples=tasks.EXAMPLES,
        workers=len(workers),
        waiting=sum(depths.values()) + sum(each.waiting for each in workers),
        items_per_second=round(rows, 1),
        mean_batch_size=round(rows / batches, 1) if batches else None,
    )


@cache
def _monitor() -> _Monitor:
    return _Monitor()


def stats() -> Stats:
    """
    Return the tasks' names, and the workers' numbers of the last seconds.

    Raises:
        BrokerUnreachable: The broker does not answer.
    """
    return _monitor().stats()
