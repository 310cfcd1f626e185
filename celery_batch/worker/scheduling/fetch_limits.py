"""How many more messages a worker can use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil

from celery_batch.worker.dispatch.job import BatchJob
from celery_batch.worker.scheduling.slots import Slots
from celery_batch.worker.scheduling.task_queue import LEAST_URGENT, TaskQueue

__all__ = ["FetchLimits"]

#: The limit where no task queue sets one; the prefetch still does.
_NO_LIMIT = 1 << 20


class FetchLimits:
    """
    How many more messages the task queues of one worker can use.

    All methods take the names of the tasks that a broker queue may bring, or None if it may
    bring any, and the urgency of messages: a smaller number goes first.

    Args:
        task_queues: By the names of their tasks; more are added later.
        jobs: The jobs that have not ended.
        slots: The slots of the worker.
    """

    def __init__(
        self, task_queues: Mapping[str, TaskQueue], jobs: AbstractSet[BatchJob], slots: Slots
    ) -> None:
        self._task_queues = task_queues
        self._jobs = jobs
        self._slots = slots

    def has_capacity(self) -> bool:
        """Return whether each task can use another message, of whatever urgency."""
        return any(self.left(self._task_queues, [LEAST_URGENT]))

    def left(self, tasks: Collection[str] | None, urgencies: Sequence[int]) -> list[int]:
        """
        Return how many more messages of each urgency can run, be ready or wait for a batch.

        The task of the next message is unknown, so the fullest task queue sets the limit: what
        it cannot use stays in the broker for other workers.
        """
        task_queues = self._queues_of(tasks)
        most_urgent = min(urgencies)
        if any(each.behind(most_urgent) for each in task_queues):
            return [self._left(task_queues, tasks, urgency) for urgency in urgencies]
        # They would overtake no request, so the limit is the same for all of them.
        return [self._left(task_queues, tasks, most_urgent)] * len(urgencies)

    def _left(
        self, task_queues: Collection[TaskQueue], tasks: Collection[str] | None, urgency: int
    ) -> int:
        batches, jobs = self._slots.capacity + self._slots.processes, list(self._jobs)
        left = [
            each.capacity_left(batches, [job for job in jobs if job.task is each.task], urgency)
            for each in task_queues
        ]
        if tasks is None:
            left = [number for number in left if number > 0]
        return max(min(left, default=_NO_LIMIT), 0)

    def guaranteed(self, tasks: Collection[str] | None, urgencies: Sequence[int]) -> list[int]:
        """
        Return how many rows of each urgency to fetch before more urgent messages.

        While more urgent requests are here, enough others must wait here to fill their
        low-priority share of the next two batches.
        """
        task_queues = self._queues_of(tasks)
        waiting = [each for each in task_queues if not each.is_empty]
        most_urgent = min(
            [each.urgency for each in waiting] + [job.urgency for job in list(self._jobs)],
            default=LEAST_URGENT,
        )
        if most_urgent >= max(urgencies):
            return [0] * len(urgencies)
        policies = [each.policy for each in task_queues]
        share = ceil(2 * max(each.low_priority_share * each.max_batch_size for each in policies))
        return [
            max(share - sum(each.rows_of(urgency) for each in waiting), 0)
            if most_urgent < urgency
            else 0
            for urgency in urgencies
        ]

    def behind(self, tasks: Collection[str], urgency: int) -> int:
        """Return how many waiting requests new ones of these tasks would overtake."""
        return sum(each.behind(urgency) for each in self._queues_of(tasks))

    def _queues_of(self, tasks: Collection[str] | None) -> list[TaskQueue]:
        task_queues = list(self._task_queues.items())
        return [each for name, each in task_queues if tasks is None or name in tasks]
