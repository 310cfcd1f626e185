"""

Chooses the task whose batch runs next.

Rule 1: the lane with the most urgent request comes first; among equals the one whose
        oldest request has waited longest.
Rule 2: a batch that is more urgent than the one that lies ready goes before it.
Rule 3: whoever is overtaken has a share all the same, `low_priority_share` of its task: after so
        many batches of others a lane comes first, and a batch that lies ready stays next.
        What its requests were owed in line counts, too; and while it is overtaken, it
        alone is owed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from celery_batch.worker.dispatch.job import BatchJob
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["TaskPriority"]

#: A whole batch, but for what adding up its parts may cost in float arithmetic.
_WHOLE = 1 - 1e-6

#: That of a lane in which nobody waits.
_NOBODY = 1 << 31


class TaskPriority:
    """What lanes and batches are owed by those who overtook them, as parts of a batch."""

    def __init__(self) -> None:
        self._scheduler: defaultdict[TaskQueue, float] = defaultdict(float)
        self._jobs: dict[BatchJob, float] = {}

    def order(self, scheduler: Iterable[TaskQueue]) -> list[TaskQueue]:
        """Return lanes in the order in which they are to be asked for a batch."""
        return sorted(
            scheduler,
            key=lambda task_queue: (
                not self._is_guaranteed(task_queue),
                _urgency(task_queue),
                task_queue.oldest,
            ),
        )

    def overtaken_by(self, task_queue: TaskQueue, jobs: Iterable[BatchJob]) -> BatchJob | None:
        """
        Return the batch that lies ready, if a lane's next one would go before it.

        Args:
            task_queue: Whose batch.
            jobs: All that are on their way.
        """
        ready = [job for job in jobs if not job.accepted]
        if len(ready) != 1 or _urgency(task_queue) >= ready[0].urgency:
            return None
        return ready[0] if self._jobs.get(ready[0], ready[0].guaranteed) < _WHOLE else None

    def note(self, task_queue: TaskQueue, job: BatchJob, others: Collection[TaskQueue]) -> None:
        """
        Take note of a lane's batch before it is sent.

        Args:
            task_queue: Whose batch.
            job: The batch; if it is owed to its lane, nobody who waits overtakes it again.
            others: All lanes.
        """
        if self._is_guaranteed(task_queue):
            job.urgency = min(job.urgency, *map(_urgency, others))
        self._scheduler.pop(task_queue, None)
        for other in others:
            if other is not task_queue and job.urgency < _urgency(other) < _NOBODY:
                self._scheduler[other] += other.policy.low_priority_share

    def _is_guaranteed(self, task_queue: TaskQueue) -> bool:
        """Say whether a lane's next batch is one of so many that it has a right to."""
        return self._scheduler[task_queue] + task_queue.policy.low_priority_share > _WHOLE

    def overtake(self, job: BatchJob, share: float) -> None:
        """
        Take note that a batch which lies ready is overtaken.

        Args:
            job: The batch.
            share: Its task's.
        """
        self._jobs[job] = self._jobs.get(job, share + job.guaranteed) + share

    def forget(self, job: BatchJob) -> None:
        """Forget a batch that is over."""
        self._jobs.pop(job, None)


def _urgency(task_queue: TaskQueue) -> int:
    return _NOBODY if task_queue.urgency is None else task_queue.urgency
