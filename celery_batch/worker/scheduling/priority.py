"""
Chooses the task whose batch runs next.

Rule 1: the task with the most urgent request comes first; among equals the one that has had
        the least of its share of the device, and then the one whose oldest request has waited
        longest.
Rule 2: a batch that comes first by rule 1, when another is ready, goes before that.
Rule 3: overtaken tasks and batches have a share all the same, `low_priority_share` of their
        task: after so many batches of others a task comes first, and a ready batch is
        overtaken no more.  The share that its requests had earned while they waited counts, too;
        and while a ready batch is overtaken, only that batch earns the share of its task.
Rule 4: the device is shared by time (start-time fair queueing): a batch is charged what the
        batches of its task usually take when it leaves, and what it took when it has ended. It
        starts, in a virtual time, where the last batch of its task ended, or at present if that
        is later: who was idle gets no credit. The present is where the latest batch that has
        begun started.
Rule 5: while several tasks have work, the next batch is made ready just before a running one
        is expected to end, and as much earlier as its rows take to be collated: the requests of
        another task that come until then go first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heapreplace
from operator import add

from celery_batch.batching.batch import LEAST_URGENT
from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["FairShare", "TaskPriority", "is_shared"]

#: A whole batch, less what adding up its parts may lose in float arithmetic.
_WHOLE = 1 - 1e-6

#: Seconds that a batch is taken to run before any of its task has ended.  Tasks that are new
#: take turns; more would move the present virtual time on, which is never moved back, and those
#: who had more than their share by then would start there, too.
_FIRST_ESTIMATE = 0.001

#: Seconds before the expected end of a batch at which the next one is made ready, if its rows
#: need not be collated.
_READY_BEFORE = 0.01


def is_shared(task_queues: Collection[TaskQueue], now: float) -> bool:
    """Return whether several tasks have work, or had it lately, on the monotonic clock."""
    return len(task_queues) > 1 and sum(each.is_in_use(now) for each in task_queues) > 1


class FairShare:
    """The virtual times of users who take something in turns; see rule 4."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[Hashable, float] = {}

    def start(self, user: Hashable) -> float:
        """Return when the next use of a user would start; the smallest goes first."""
        return max(self._ends.get(user, 0.0), self._now)

    def charge(self, user: Hashable, amount: float, weight: float = 1.0) -> float:
        """Charge a use to a user, and return when it starts; an estimate may be corrected later."""
        start = self.start(user)
        self._ends[user] = start + amount / weight
        return start

    def correct(self, user: Hashable, amount: float, weight: float = 1.0) -> None:
        """Charge so much more to a user, or less, as an estimate was wrong."""
        self._ends[user] = self._ends.get(user, self._now) + amount / weight

    def begin(self, start: float) -> None:
        """Note that the use that starts then has begun."""
        self._now = max(self._now, start)


class TaskPriority:
    """What each task has had of the device, and what overtaken tasks and batches have earned."""

    def __init__(self) -> None:
        self._tasks: defaultdict[TaskQueue, float] = defaultdict(float)
        self._jobs: dict[BatchJob, float] = {}
        self._device = FairShare()
        #: The seconds that jobs were charged when they left, and with which weights.
        self._charged: dict[BatchJob, tuple[float, float]] = {}

    def order(self, task_queues: Iterable[TaskQueue]) -> list[TaskQueue]:
        """Return task queues in the order in which they are asked for a batch."""
        return sorted(
            task_queues,
            key=lambda each: (
                not self._has_earned_batch(each),
                each.urgency,
                self._device.start(each),
                each.oldest,
            ),
        )

    @staticmethod
    def seconds_until_ready(
        task_queues: Collection[TaskQueue], jobs: Collection[BatchJob], processes: int, now: float
    ) -> float:
        """Return in how many seconds to make a batch ready: just before a process is free."""
        if not is_shared(task_queues, now):
            return 0.0
        usual = {each.task.name: each.history.usual_seconds for each in task_queues}
        finishing = max(sum(job.began is not None for job in jobs) - processes, 0)
        in_order = sorted(jobs, key=lambda job: job.began or now)[finishing:]
        times = [usual[job.task.name] * job.batches for job in in_order]
        began = [job.began or now for job in in_order[:processes]]
        ends: list[float] = list(map(add, began, times))
        heapify(ends)
        for time in times[processes:]:
            heapreplace(ends, ends[0] + time)
        collating = max(each.history.usual_collating for each in task_queues if each.is_in_use(now))
        return max(ends[0] - now - collating - _READY_BEFORE, 0.0)

    def overtaken_by(self, task_queue: TaskQueue, jobs: Iterable[BatchJob]) -> BatchJob | None:
        """Return the batch that is ready, if the next batch of a task would go before it."""
        ready = [job for job in jobs if not job.accepted]
        if len(ready) != 1:
            return None
        job, urgency = ready[0], task_queue.urgency
        if urgency < job.urgency:
            return job if self._jobs.get(job, job.earned_part) < _WHOLE else None
        if urgency == job.urgency and job.task is not task_queue.task:
            return job if self._device.start(task_queue) < job.start else None
        return None

    def batch_left(
        self, task_queue: TaskQueue, job: BatchJob, task_queues: Collection[TaskQueue]
    ) -> None:
        """Charge a batch that leaves to its task; overtaken tasks earn their shares."""
        seconds = (task_queue.history.usual_seconds or _FIRST_ESTIMATE) * job.batches
        charged = self._charged[job] = seconds, task_queue.policy.device_share
        job.start = self._device.charge(task_queue, *charged)
        if self._has_earned_batch(task_queue):
            job.urgency = min(job.urgency, *(each.urgency for each in task_queues))
            job.start = -math.inf
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

    def batch_began(self, job: BatchJob) -> None:
        """Note that a process has begun to run a batch."""
        self._device.begin(job.start)

    def batch_ended(self, task_queue: TaskQueue, job: BatchJob) -> None:
        """Charge a batch what it took, and forget it; one whose process died what was expected."""
        self._jobs.pop(job, None)
        charged, weight = self._charged.pop(job, (0.0, 1.0))
        if charged and (job.answer is not None or job.began is None):
            took = 0.0 if job.answer is None else job.answer.work.seconds
            self._device.correct(task_queue, took - charged, weight)
