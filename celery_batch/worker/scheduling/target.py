"""How long the calls of a task's model take, and how its batches keep to a latency target."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_batch.batching.batch import Request
from celery_batch.batching.keyed_batcher import AnyBatcher
from celery_batch.batching.latency_model import LatencyModel
from celery_batch.batching.latency_target import TargetedQueue
from celery_batch.protocol import SENT
from celery_batch.telemetry.report import NO_WORK
from celery_batch.worker.dispatch.batch_job import BatchJob

__all__ = ["CallTimes", "TargetTracker", "is_exempt", "sent_at"]

#: Seconds.  A message that says it is older has another clock, or no target that matters.
_OLDEST = 3600.0

#: Milliseconds since 1970 of no clock, which can still be computed with.
_LATEST = 1 << 53


def sent_at(task_request: Any) -> float:
    """Return when a request was sent, on the monotonic clock; its arrival where that is unknown."""
    arrived: float = task_request.arrived
    fields = task_request.request_dict
    sent = fields.get(SENT)  # from the wire: anything may be there
    is_known = isinstance(sent, int) and 0 < sent < _LATEST
    if not is_known or fields.get("eta") is not None:
        return arrived
    age = time.time() - sent / 1000 - (time.monotonic() - arrived)
    return arrived - age if 0 < age < _OLDEST else arrived


def is_exempt(task_request: Any) -> bool:
    """Return whether a request must run, however late it is."""
    fields = task_request.request_dict
    was_accepted = fields.get(SENT) == 0 or fields.get("retries") or fields.get("parent_id")
    is_suspect = task_request.runs_alone or task_request.is_redelivery_suspect
    return bool(was_accepted or is_suspect or task_request.acknowledged)


class CallTimes:
    """Learns from the batches of one task."""

    def __init__(self, model: LatencyModel | None = None) -> None:
        self.model = model or LatencyModel()
        #: Processes that have run a batch: the first one of each may be slow.
        self._warm: set[int | None] = set()

    def observe(self, job: BatchJob, *, in_cost: bool) -> bool:
        """Learn from a batch that has left its slot; return whether it went as batches go."""
        answer = job.answer
        if answer is None:
            return False
        work, is_warm = answer.work, job.pid in self._warm
        self._warm.add(job.pid)
        if work.began is None or work.isolated or work.out_of_memory or not is_warm:
            return False
        if None in answer.results or not work.calls:
            return False
        total = work.padded_cost if in_cost else work.rows + work.padding_rows
        if total > 0:
            self.model.observe(total / work.calls, work.seconds / work.calls, time.monotonic())
        return True


class TargetTracker:
    """Keeps the batches of one task to its latency target, and counts the requests that met it."""

    def __init__(self, batcher: AnyBatcher[Any], processes: Callable[[], int]) -> None:
        self.queue: TargetedQueue[Any] = TargetedQueue(batcher, processes)
        self.call_times = CallTimes(self.queue.model)
        #: Requests with a result within the target, those with a later one, and those refused.
        self.in_time = self.late = self.refused = 0
        self._predicted: float | None = None
        #: When the last call of the model ended.
        self._last_ended = 0.0

    def late_by(self, request: Request[Any]) -> float:
        """Return by how many seconds a request would miss the target; it is then refused."""
        late = self.queue.late_by(request, time.monotonic())
        self.refused += late > 0
        return late

    def batch_ended(self, job: BatchJob) -> None:
        """Learn from a batch that has left its slot."""
        plan, now = job.plan, time.monotonic()
        if plan is None:
            return
        work = NO_WORK if job.answer is None else job.answer.work
        ended = now if work.ended is None else work.ended
        self.queue.ended(plan, ended)
        self._predicted = plan.predicted
        if job.answer is None:
            return
        stored = job.answer.stored or now
        self._count(job, stored)
        limits_cost = self.queue.configured.max_batch_cost is not None
        if not self.call_times.observe(job, in_cost=limits_cost) or work.began is None:
            return
        waited = work.began - max(plan.left_at, self._last_ended)
        overhead = max(waited, 0.0) + max(stored - ended, 0.0)
        self.call_times.model.observe_overhead(overhead, now)
        self._last_ended = ended

    def _count(self, job: BatchJob, stored: float) -> None:
        policy = self.queue.configured
        target = policy.target_latency
        if target is None:
            return
        sent = [(sent_at(request), request.arrived) for request in job.requests]
        in_time = sum(stored - at <= target for at, _ in sent)
        self.in_time += in_time
        self.late += len(sent) - in_time
        if policy.shed:  # of those that did not come late
            accepted = [stored - at > target for at, arrived in sent if arrived - at < target / 2]
            if accepted:
                self.queue.note_accepted(sum(accepted) / len(accepted))

    def report(self) -> dict[str, Any]:
        """Return what is known, what was chosen and why, as plain data; times in seconds."""
        queue = self.queue
        policy, model, limit = queue.configured, queue.model, queue.limit
        return {
            "target_latency": policy.target_latency,
            "shed": policy.shed,
            "latency": {
                "a": round(model.a, 6),
                "b": round(model.b, 9),
                "overhead": round(model.overhead, 6),
                "slowness": round(model.slowness, 3),
                "margin": round(queue.margin, 6),
                "learnt_from": model.batches,
                "limit": round(min(limit.work, policy.max_batch_work), 3),
                "why": str(limit.why),
                "predicted": None if self._predicted is None else round(self._predicted, 6),
                "in_time": self.in_time,
                "late": self.late,
                "refused": self.refused,
            },
        }
