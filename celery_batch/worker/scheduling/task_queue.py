"""The requests of one batch task in this worker, from arrival to batch.

The lock guards decisions only.  Batches are submitted outside it, because the
solo pool runs the whole batch inside the call that submits it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from celery.worker.state import revoked, task_ready

from celery_batch.batching.batch import Batch
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
from celery_batch.config import policy_of
from celery_batch.worker.dispatch.job import BatchJob
from celery_batch.worker.dispatch.outcome import BatchEnd
from celery_batch.worker.scheduling.slots import Slots

__all__ = [
    "PausedRequests",
    "TaskQueue",
]


class PausedRequests:
    """
    The requests of one paused task, in the order in which they came.

    What runs, or runs again because its batch broke, is not among them.
    """

    def __init__(self) -> None:
        self._requests: list[tuple[Any, bool]] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(request.rows for request, _ in self._requests)

    @property
    def oldest(self) -> float:
        """When the request arrived that is kept longest; never, if there is none."""
        return min((request.arrived for request, _ in self._requests), default=float("inf"))

    def add(self, task_request: Any, *, alone: bool = False) -> None:
        """
        Keep one of Celery's requests; it waits from its arrival on, as it would in line.

        Args:
            task_request: Its message is not acknowledged.
            alone: It is to run without company, once it runs.
        """
        if task_request.arrived is None:
            task_request.arrived = time.monotonic()
        self._requests.append((task_request, alone))

    def take(self, is_wanted: Callable[[Any], bool] = lambda _: True) -> list[tuple[Any, bool]]:
        """Remove and return those of whom something holds, each with whether it runs alone."""
        kept, self._requests = self._requests, []
        taken: list[tuple[Any, bool]] = []
        for request, alone in kept:
            (taken if is_wanted(request) else self._requests).append((request, alone))
        return taken

    def leave_out(self) -> int:
        """Announce the end of those whom nobody wants any more; return how many they were."""
        return len(self.take(_is_unwanted))


def _is_unwanted(request: Any) -> bool:
    return bool((request.expires or request.id in revoked) and request.revoked())


class TaskQueue:
    """
    The requests of one batch task that wait for a slot in this worker.

    Args:
        task: The batch task.
        slots: Of the worker, shared with its other lanes.
    """

    def __init__(self, task: Any, slots: Slots) -> None:
        self.task = task
        self.reasons: Counter[str] = Counter()
        self.requests = 0
        self.rows = 0
        self.calls = 0
        #: For each power of two, how many batches of at most that many rows, and of more
        #: than half of it, and how many rows they had.
        self.sizes: dict[int, list[int]] = {}
        self.safe_size: int | None = None
        self.losses = 0
        #: Where newcomers go while the task is paused.
        self.kept: PausedRequests | None = None
        self._paused_by: set[object] = set()
        self._slots = slots
        self._batcher: Batcher[Any] = Batcher(policy_of(task))
        self._lock = slots.lock

    @property
    def policy(self) -> BatchPolicy:
        """When its batches leave; an operator may change that at any time."""
        return self._batcher.policy

    @policy.setter
    def policy(self, policy: BatchPolicy) -> None:
        with self._lock:
            self._batcher.policy = policy

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits here."""
        return not self._batcher

    @property
    def oldest(self) -> float:
        """When the request that waits longest arrived; never, if nobody waits."""
        oldest = self._batcher.oldest
        return float("inf") if oldest is None else oldest

    @property
    def waiting_since(self) -> float:
        """When the one arrived who waits longest, kept or in line; never, if nobody waits."""
        return min(self.oldest, self.kept.oldest) if self.kept else self.oldest

    def add(self, task_request: Any, *, urgency: int = 0, alone: bool = False) -> None:
        """
        Put Celery's request in line.

        Args:
            task_request: Of this lane's task.
            urgency: Smaller goes first.
            alone: It is to run without company.
        """
        if task_request.arrived is None:
            task_request.arrived = time.monotonic()
        request = Request(
            task_request,
            task_request.arrived,
            urgency,
            alone=alone,
            deadline=task_request.deadline,
            rows=task_request.rows,
        )
        with self._lock:
            self._batcher.add(request)

    def expire(self) -> list[Any]:
        """Remove and return Celery's requests that could not be run again in the time they had."""
        with self._lock:
            return [request.item for request in self._batcher.expire(time.monotonic())]

    @property
    def next_deadline(self) -> float | None:
        """Seconds until somebody will have to be given up; None if nobody will."""
        with self._lock:
            deadline = self._batcher.next_deadline
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def restart_linger(self) -> None:
        """Take note that the loop was busy: newcomers may be waiting unread."""
        with self._lock:
            self._batcher.restart_linger(time.monotonic())

    def ended(self, job: BatchJob) -> None:
        """Take note that a batch has ended, and so whom it pays to wait for."""
        if len(job) > 1:
            with self._lock:
                self._batcher.batch_ended(time.monotonic(), job.rows, job.urgency)

    def room(self, batches: int, jobs: Sequence[BatchJob], urgency: int) -> int:
        """
        Return how many more requests could be put to use.

        A chunk counts as many rows; but as many requests as there are places for
        batches are of use, whatever their size.

        Args:
            batches: How many can run, be ready or be gathered.
            jobs: Those of this lane that are on their way.
            urgency: Of the newcomers; whom they would overtake leaves them their room.
        """
        with self._lock:
            requests, rows = self._batcher.before(urgency)
        if self.kept is not None:
            requests, rows = requests + len(self.kept), rows + self.kept.rows
        requests += sum(map(len, jobs))
        rows += sum(job.rows for job in jobs)
        each = rows / requests if requests else self.rows / max(self.requests, 1)
        left = (batches * self.policy.max_batch_size - rows) / max(each, 1)
        return max(int(left), batches - requests, 0)

    def rows_of(self, urgency: int) -> int:
        """Return how many rows those have who wait here and are just so urgent."""
        with self._lock:
            return self._batcher.rows_of(urgency)

    def behind(self, urgency: int) -> int:
        """Return how many wait here whom a newcomer of this urgency would overtake."""
        with self._lock:
            return len(self._batcher) - self._batcher.before(urgency)[0]

    @property
    def is_full(self) -> bool:
        """Whether a batch that cannot grow any more waits here."""
        return self._batcher.is_full

    @property
    def urgency(self) -> int | None:
        """How urgent the next batch will be; None if nobody waits."""
        return self._batcher.urgency

    def take(self, *, contested: bool, overtaken: BatchJob | None = None) -> Batch[Any] | Wait:
        """
        Return a batch, with a slot set aside for it, or how long to wait.

        Args:
            contested: Some lane has a full batch.  A place behind a running batch
                is then as good as a free slot: if this lane waited for company,
                the place would go to the others, every time.
            overtaken: Where nothing more may be made ready, one more may all the same,
                since it goes before this one.
        """
        with self._lock:
            is_extra = overtaken is not None and not self._slots.room_ahead
            if not self._slots.room_ahead and not is_extra:
                return Wait(None)
            ahead = not self._slots.free and not contested and not is_extra
            earns_share = not (is_extra and overtaken and overtaken.task is self.task)
            decision = self._batcher.next(time.monotonic(), ahead=ahead, earns_share=earns_share)
            if not isinstance(decision, Batch):
                return decision if isinstance(decision, Wait) else Wait(None)
            self._slots.in_flight += 1
            self.reasons[decision.reason] += 1
            rows = decision.rows
            self.requests += len(decision)
            self.rows += rows
            size = self.sizes.setdefault(1 << max(rows - 1, 0).bit_length(), [0, 0])
            size[0] += 1
            size[1] += rows
            return decision

    def forget(self) -> list[Any]:
        """Drop and return everybody in line: their messages go back to the broker."""
        with self._lock:
            left = [request.item for request in self._batcher.clear()]
            left += [request for request, _ in self.kept.take()] if self.kept else []
        for task_request in left:
            task_ready(task_request)
        return left

    def pause(self, by: object) -> None:
        """
        Let no batch leave but of those who run again, since their batch broke.

        Args:
            by: Who pauses it; it goes on when each of them has had it resumed.
        """
        with self._lock:
            self._paused_by.add(by)
            self.kept = self.kept or PausedRequests()
            for request in self._batcher.clear():
                if request.alone or request.item.acknowledged:  # no broker has its message
                    self._batcher.add(request)
                else:
                    self.kept.add(request.item)

    def is_paused_by(self, who: object) -> bool:
        """Return whether somebody has paused it, and not had it resumed."""
        return who in self._paused_by

    def resume(self, by: object) -> list[tuple[Any, bool]]:
        """
        Let batches leave, unless somebody else has paused it, too.

        Args:
            by: Who paused it.

        Returns:
            Whom the pause has kept, each with whether it runs alone.
        """
        with self._lock:
            self._paused_by.discard(by)
            if self._paused_by:
                return []
            kept, self.kept = self.kept, None
            return kept.take() if kept else []

    def learn(self, answer: BatchEnd | None) -> None:
        """Take note of what a batch has cost, and of what was learnt from it."""
        if answer is None:
            self.losses += 1
        else:
            self.calls += answer.work.calls
            self.safe_size = answer.safe_size

    def drop(self, tags: set[str]) -> None:
        """Drop those in line whose messages have gone to another worker."""
        with self._lock:
            waiting = self._batcher.clear()
            for request in waiting:
                if request.item.message.delivery_tag not in tags:
                    self._batcher.add(request)
            gone = [each.item for each in waiting if each.item.message.delivery_tag in tags]
            if self.kept:
                kept = self.kept.take(lambda each: each.message.delivery_tag in tags)
                gone += [request for request, _ in kept]
        for task_request in gone:
            task_ready(task_request)

    def report(self) -> dict[str, Any]:
        """Return what an operator wants to know, as plain data."""
        return {
            "max_batch_size": self.policy.max_batch_size,
            "max_wait": self.policy.max_wait,
            "linger": self.policy.linger_seconds,
            "low_priority_share": self.policy.low_priority_share,
            "waiting": len(self._batcher) + len(self.kept or ()),
            "batches": sum(self.reasons.values()),
            "requests": self.requests,
            "rows": self.rows,
            "reasons": dict(self.reasons),
            "sizes": {str(size): [*counts] for size, counts in sorted(self.sizes.items())},
            "model_calls": self.calls,
            "safe_size": self.safe_size,
            "worker_losses": self.losses,
        }
