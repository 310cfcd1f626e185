"""

Chooses the task whose batch runs next.

Rule 1: the task with the most urgent request comes first; among equals the one whose
        oldest request has waited longest.
Rule 2: a batch that is more urgent than the one that is ready goes before it.
Rule 3: overtaken tasks and batches have a share all the same, `low_priority_share` of their
        task: after so many batches of others a task comes first, and a ready batch is
        overtaken no more.  The share that its requests had earned while they waited counts, too;
        and while a ready batch is overtaken, only that batch earns the share of its task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.scheduling.task_queue import LEAST_URGENT, TaskQueue

__all__ = ["TaskPriority"]

#: A whole batch, less what adding up its parts may lose in float arithmetic.
_WHOLE = 1 - 1e-6


class TaskPriority:
    """The shares that overtaken tasks and batches have earned, as parts of a batch."""

    def __init__(self) -> None:
        self._tasks: defaultdict[TaskQueue, float] = defaultdict(float)
        self._jobs: dict[BatchJob, float] = {}

    def order(self, task_queues: Iterable[TaskQueue]) -> list[TaskQueue]:
        """Return task queues in the order in which they are asked for a batch."""
        return sorted(
            task_queues,
            key=lambda each: (not self._has_earned_batch(each), each.urgency, each.oldest),
        )

    def overtaken_by(self, task_queue: TaskQueue, jobs: Iterable[BatchJob]) -> BatchJob | None:
        """
        Return the batch that is ready, if the next batch of a task would go before it.

        Args:
            task_queue: The queue of the task.
            jobs: All jobs that have not ended.
        """
        ready = [job for job in jobs if not job.accepted]
        if len(ready) != 1 or task_queue.urgency >= ready[0].urgency:
            return None
        return ready[0] if self._jobs.get(ready[0], ready[0].earned_part) < _WHOLE else None

    def batch_left(
        self, task_queue: TaskQueue, job: BatchJob, task_queues: Collection[TaskQueue]
    ) -> None:
        """
        Update the shares for a batch that leaves.

        Args:
            task_queue: The queue that it leaves.
            job: The batch; if it leaves as its task's share, no waiting request overtakes it.
            task_queues: All task queues.
        """
        if self._has_earned_batch(task_queue):
            job.urgency = min(job.urgency, *(each.urgency for each in task_queues))
        self._tasks.pop(task_queue, None)
        for other in task_queues:
            if other is not task_queue and job.urgency < other.urgency < LEAST_URGENT:
                self._tasks[other] += other.policy.low_priority_share

    def _has_earned_batch(self, task_queue: TaskQueue) -> bool:
        """Return whether the share of a task has grown to a whole batch."""
        return self._tasks[task_queue] + task_queue.policy.low_priority_share > _WHOLE

    def overtake(self, job: BatchJob, share: float) -> None:
        """Add the share of its task to what an overtaken batch has earned."""
        self._jobs[job] = self._jobs.get(job, share + job.earned_part) + share

    def forget(self, job: BatchJob) -> None:
        """Forget a batch that has ended."""
        self._jobs.pop(job, None)
