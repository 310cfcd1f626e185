"""Every batch task of a worker: who may use a slot next, and what follows a batch."""

from __future__ import annotations

from collections import deque
from typing import Any

from celery_batch.batching.batch import Batch
from celery_batch.worker.alarm import alarm_for
from celery_batch.worker.job import BatchJob, News
from celery_batch.worker.lane import Lane
from celery_batch.worker.slots import Slots

__all__ = ["Lanes"]

#: Requests settled in one pass of the event loop; each costs a fraction of a
#: millisecond in which no message is read and no batch is sent off.
_SETTLED_PER_PASS = 16


class Lanes:
    """
    The lanes of one consumer, which share its pool's slots.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._hub = consumer.hub
        self._slots = Slots(consumer.pool)
        self._lanes: dict[str, Lane] = {}
        self._jobs: set[BatchJob] = set()
        self._unsettled: deque[News] = deque()
        self._alarm = alarm_for(consumer.hub, self._ring)
        self._open = False

    def __repr__(self) -> str:
        return f"<Lanes {list(self._lanes.values())}, {self._slots.in_flight} in flight>"

    def lane(self, task: Any) -> Lane:
        """Return the lane of a batch task, made on first use."""
        if task.name not in self._lanes:
            self._lanes[task.name] = Lane(task, self._slots)
        return self._lanes[task.name]

    @property
    def is_open(self) -> bool:
        """Whether the event loop runs and batches may leave."""
        return self._open

    def room(self) -> int:
        """Return how many more requests could be put to use, running, ready or gathering."""
        batches = self._slots.capacity + self._slots.processes
        held = sum(len(job) for job in list(self._jobs))
        lanes = list(self._lanes.values())
        wanted = batches * sum(lane.policy.max_batch_size for lane in lanes)
        return max(wanted - held - sum(lane.waiting for lane in lanes), 0)

    def open(self) -> None:
        """Let batches leave; called for each new connection."""
        self._open = True

    def close(self, *, restarting: bool) -> None:
        """
        Let nothing more leave, and give back what has not left.

        Args:
            restarting: The connection is gone and another will come; else the
                worker is shutting down and its running batches finish.
        """
        self._open = False
        self._alarm.cancel()
        self._settle_all(restarting=restarting)
        for lane in self._lanes.values():
            lane.forget()
        for job in list(self._jobs):
            # On a restart the pool has thrown away what no process had accepted,
            # without a word; at shutdown it still runs what it was given.
            if not job.submitted or (restarting and not job.accepted):
                job.forget()
                self._leave(job)
            elif restarting:
                job.disown()

    def add(self, lane: Lane, task_request: Any) -> None:
        """Put Celery's request in its lane, and send off what may leave."""
        lane.add(task_request)
        self.pump()

    def pump(self) -> None:
        """Send off every batch that may leave now; arm the alarm for the next that may."""
        while self._open:
            soonest: float | None = None
            lanes = sorted(self._lanes.values(), key=lambda lane: lane.oldest)
            contested = any(lane.is_full for lane in lanes)
            for lane in lanes:
                decision = lane.take(contested=contested)
                if isinstance(decision, Batch):
                    self._submit(lane, decision)
                    break
                if decision.seconds is not None:
                    soonest = min(decision.seconds, soonest or decision.seconds)
            else:
                if soonest is not None:
                    self._alarm.set(soonest)
                return

    def report(self) -> dict[str, Any]:
        """Return each lane's report by the task's name."""
        return {name: lane.report() for name, lane in sorted(self._lanes.items())}

    def _submit(self, lane: Lane, batch: Batch[Any]) -> None:
        job = BatchJob(lane.task, batch, on_end=self._on_end)
        self._jobs.add(job)
        self._consumer.on_task_request(job)

    def _on_end(self, job: BatchJob, news: list[News]) -> None:
        self._leave(job)
        if self._hub is None or not self._open:
            for each in news:
                each.deliver()
            self.pump()
            return
        # Bookkeeping comes last: a batch that is ready now, or can be read now,
        # must not wait for the one that is done.
        self._unsettled.extend(news)
        self._hub.call_soon(self._next_then_settle)

    def _next_then_settle(self) -> None:
        self.pump()
        self._hub.call_soon(self._settle_some)

    def _settle_some(self) -> None:
        for _ in range(min(_SETTLED_PER_PASS, len(self._unsettled))):
            self._unsettled.popleft().deliver()
        if self._unsettled:
            self._hub.call_soon(self._settle_some)

    def _settle_all(self, *, restarting: bool) -> None:
        while self._unsettled:
            news = self._unsettled.popleft()
            if restarting:
                news.disown()
            news.deliver()

    def _leave(self, job: BatchJob) -> None:
        with self._slots.lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._slots.in_flight -= 1

    def _ring(self, late: float) -> None:
        for lane in self._lanes.values():
            if late > lane.policy.patience:
                lane.looked_away()
        self.pump()
