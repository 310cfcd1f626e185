"""The requests of one batch task in this worker, from arrival to batch.

The lock guards decisions only.  Batches are submitted outside it, because the
solo pool runs the whole batch inside the call that submits it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf
from operator import attrgetter
from typing import Any

from celery.worker.state import task_ready

from celery_batch.batching.batch import LEAST_URGENT, Batch, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.cost import CallCost
from celery_batch.batching.duplicates import Duplicates
from celery_batch.batching.keyed_batcher import AnyBatcher, KeyedBatcher
from celery_batch.batching.latency_target import TargetedQueue
from celery_batch.batching.policy import BatchPolicy
from celery_batch.config import LARGEST_BATCH, policy_of
from celery_batch.items.functions import item_cost_of, item_key_of
from celery_batch.serialization.row_digest import row_digest_of
from celery_batch.telemetry.meter import Tally
from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.scheduling.history import Arrivals, BatchHistory, smoothed
from celery_batch.worker.scheduling.target import CallTimes, TargetTracker, is_exempt, sent_at

__all__ = ["KEY_WINDOW", "TaskQueue"]

_Queue = AnyBatcher[Any] | TargetedQueue[Any]

#: Most batches' worth of requests that are read ahead where batches are formed by key, and bytes
#: of all that wait from which on no more are read ahead, by key or by length.
KEY_WINDOW, _MOST_BYTES = 128, 64 << 20

#: How many bodies come between two that are measured.
_EVERY = 15


class TaskQueue:
    """The requests of one batch task that wait for a slot, or are set aside while it is paused."""

    #: The bytes of a usual body, as of late, and how many come before the next that is measured;
    #: where batches are formed by key or by cost.
    _body_bytes = 0.0
    _unseen_bodies = 0

    def __init__(
        self,
        task: Any,
        lock: AbstractContextManager[object],
        processes: Callable[[], int] = lambda: 1,
    ) -> None:
        self.processes = processes
        self.task = task
        self.history = BatchHistory()
        self.arrivals = Arrivals()
        self._paused_by: set[object] = set()
        #: Requests that arrived while the task was paused.
        self._set_aside: list[Any] = []
        self._policy = policy = policy_of(task)
        #: Whether requests are refused that would be late.
        self.sheds = policy.shed
        self._item_key = item_key_of(task)
        #: What a call of the model costs beside its rows, as far as that is learnt.
        self.call_cost = cost = CallCost()
        kind = Batcher[Any] if self._item_key is None else KeyedBatcher[Any]
        self._batcher: AnyBatcher[Any] = kind(policy, cost)
        #: What chooses the batcher's policy, if the task has a latency target.
        self.target: TargetTracker | None = None
        if policy.target_latency is not None:
            self.target = TargetTracker(self._batcher, processes)
        self._call_times = CallTimes() if self.target is None else self.target.call_times
        #: The batcher, or what takes its requests and gives its batches: a target, equal requests.
        self._queue: _Queue | Duplicates[Any] = self._batcher
        self._share_rows(wanted=policy.dedupe)
        self._item_cost = None if policy.max_batch_cost is None else item_cost_of(task)
        #: Guards the decisions of all task queues of the worker.
        self._lock = lock

    @property
    def policy(self) -> BatchPolicy:
        """When its batches leave; remote control may change that at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: BatchPolicy) -> None:
        with self._lock:
            self._policy, self.sheds = policy, policy.shed
            if self.target is None:
                self._batcher.policy = policy
            else:
                self.target.queue.configured = policy
            if policy.dedupe != (self._row_digest is not None):
                self._share_rows(wanted=policy.dedupe)

    def _share_rows(self, *, wanted: bool) -> None:
        """Let equal requests share a row from now on, or run each by itself."""
        if isinstance(self._queue, Duplicates):
            self._queue.release()
        self._row_digest = digest = row_digest_of(self.task) if wanted else None
        queue: _Queue = self._batcher if self.target is None else self.target.queue
        shared = Duplicates(queue, attrgetter("row_digest"), LARGEST_BATCH)
        self._queue = queue if digest is None else shared

    @property
    def is_empty(self) -> bool:
        """Whether no request waits for a slot."""
        return not self._batcher

    @property
    def is_full(self) -> bool:
        """Whether a batch waits that cannot grow any more."""
        return self._batcher.is_full

    def is_in_use(self, now: float) -> bool:
        """Whether requests wait, or a batch has left lately, on the monotonic clock."""
        return bool(self._batcher) or self.history.was_in_use(now)

    @property
    def urgency(self) -> int:
        """The urgency of the next batch; a smaller number goes first."""
        urgency = self._batcher.urgency
        return LEAST_URGENT if urgency is None else urgency

    @property
    def oldest(self) -> float:
        """When the oldest waiting request arrived; infinite if there is none."""
        oldest = self._batcher.oldest
        return inf if oldest is None else oldest

    def add(self, task_request: Any, *, urgency: int = 0) -> None:
        """Add Celery's request to those that wait for a slot; also while the task is paused."""
        request = self._request(task_request, urgency)
        with self._lock:
            self._queue.add(request)

    def late_by(self, task_request: Any, urgency: int) -> float:
        """Return by how many seconds Celery's request would miss the target; 0 if it must run."""
        if self.target is None or is_exempt(task_request):
            return 0.0
        request = self._request(task_request, urgency)
        with self._lock:
            if isinstance(self._queue, Duplicates) and self._queue.has_equal(task_request):
                return 0.0  # it adds no work
            return self.target.late_by(request)

    def _request(self, task_request: Any, urgency: int) -> Request[Any]:
        """Measure Celery's request, and return it as the batcher takes it."""
        self._measure(task_request)
        return Request(
            task_request,
            self._waits_since(task_request),
            urgency,
            task_request.runs_alone,
            task_request.deadline,
            task_request.rows,
            task_request.cost or 0.0,
            task_request.batch_key,
            task_request.is_redelivery_suspect,
        )

    def _waits_since(self, task_request: Any) -> float:
        """Return since when a request waits, by which requests are ordered."""
        if task_request.waits_anew:
            return time.monotonic()
        arrived: float = task_request.arrived
        return arrived if self.target is None else sent_at(task_request)

    def _measure(self, task_request: Any) -> None:
        """Note when a request arrived here first, its cost and key, and what it equals."""
        is_new = task_request.arrived is None
        if is_new:
            task_request.arrived = time.monotonic()
        needs_cost = self._item_cost is not None and task_request.cost is None
        if needs_cost or (self._item_key is not None and task_request.batch_key is None):
            task_request.measure(self._policy, self._item_cost, self._item_key)
        if self._row_digest is not None and task_request.row_digest is None:
            task_request.compute_digest(self._row_digest)
        if is_new and (self._item_key is not None or self._item_cost is not None):
            self._unseen_bodies -= 1
            if self._unseen_bodies < 0:
                self._unseen_bodies = _EVERY
                self._body_bytes = smoothed(self._body_bytes, len(task_request.body or b""))
        if is_new and self.arrivals.is_on:
            self.arrivals.note(task_request.arrived, task_request.cost or 0.0, task_request.rows)

    def expire(self) -> list[Any]:
        """Remove and return the requests whose deadline passed before they could run again."""
        with self._lock:
            return [request.item for request in self._batcher.expire(time.monotonic())]

    @property
    def next_deadline(self) -> float | None:
        """Seconds until the next deadline of a request that must run again; None without one."""
        with self._lock:
            deadline = self._batcher.next_deadline
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def restart_linger(self) -> None:
        """Restart the linger time: the event loop was busy, so new requests may wait unread."""
        with self._lock:
            self._batcher.restart_linger(time.monotonic())

    def job_left(self, job: BatchJob) -> None:
        """Note that a batch has left its slot, whether it ran or not."""
        is_padded = self._policy.padded
        with self._lock:
            if self.target is not None:
                self.target.batch_ended(job)
            elif is_padded:
                self._call_times.observe(job, in_cost=True)
            if is_padded:
                self.call_cost.value = self._call_times.model.call_cost

    def batch_ended(self, job: BatchJob, *, may_be_unread: bool) -> None:
        """Restart the linger time after a batch of several, or if requests may have come unread."""
        with self._lock:
            if job.is_suspect and job.answer is not None and job.requests[0].is_redelivery_suspect:
                self._batcher.redelivered_ended(time.monotonic(), len(job))
            if len(job) > 1:
                self._batcher.batch_ended(time.monotonic(), job.rows, job.urgency, job.key)
            elif may_be_unread:
                self._batcher.expect_more(job.key)

    def capacity_left(
        self, batches: int, jobs: Sequence[BatchJob], urgency: int, ahead: int = 0
    ) -> int:
        """Return how many more requests of one urgency this task can use."""
        # Work is counted, since a chunk has many rows.  But as many requests as there are places
        # for batches are of use, whatever their size; and `ahead`, for batches to be chosen from.
        policy, history = self._policy, self.history
        with self._lock:
            requests, rows = self._batcher.before(urgency)
            work = self._batcher.work_before(urgency)
        for each in self._set_aside:
            requests, rows, work = requests + 1, rows + each.rows, work + each.work
        for job in jobs:
            requests, rows, work = requests + len(job), rows + job.rows, work + job.work
        if requests:
            rows_each, work_each = rows / requests, work / requests
        elif history.requests:
            rows_each = history.rows / history.requests
            work_each = history.work / history.requests
        else:
            rows_each, work_each = 1.0, policy.max_batch_work / policy.usual_rows
        rows_each = max(rows_each, 1.0)  # of equal requests only one has rows

        def fit(batches: int) -> int:
            """Return how many more requests fit into batches, by their work and by their rows."""
            by_work = batches * policy.max_batch_work - work
            by_rows = batches * policy.max_batch_size - rows
            return int(min(by_work / work_each if work_each else inf, by_rows / rows_each))

        left = max(fit(batches), batches - requests, 0)
        if ahead and (window := self._window):
            # Of keys a batch's worth at once: one by one, each message would cost a round trip.
            is_worth_it = self._item_key is None or fit(batches + window - 1) >= 0
            left = max(left, min(fit(batches + window), ahead) if is_worth_it else 0)
        return left

    @property
    def _window(self) -> int:
        """From how many more batches' worth of requests a batch is chosen."""
        batcher, window = self._batcher, self.policy.sort_window if self.policy.sorts else 0
        if len(batcher) * self._body_bytes > _MOST_BYTES:
            return 0
        return window + min(batcher.keys, KEY_WINDOW) if type(batcher) is KeyedBatcher else window

    def rows_of(self, urgency: int) -> int:
        """Return how many rows of exactly this urgency wait."""
        with self._lock:
            return self._batcher.rows_of(urgency)

    def behind(self, urgency: int) -> int:
        """Return how many waiting requests a new one of this urgency would overtake."""
        with self._lock:
            return len(self._batcher) - self._batcher.before(urgency)[0]

    def next_batch(self, *, full_only: bool, earns_share: bool) -> Batch[Any] | Wait:
        """Remove and return the next batch, or how long to wait for it; see `Batcher.next`."""
        with self._lock:
            now = time.monotonic()
            decision = self._queue.next(now, full_only=full_only, earns_share=earns_share)
            if isinstance(decision, Batch):
                self.history.left(decision, self._work_of(decision), now)
        return decision

    def _work_of(self, batch: Batch[Any]) -> float:
        """Return the work of a batch, in rows or in cost."""
        if self._item_cost is None:
            return batch.rows
        # A duplicate is no work: its rows are 0.
        return float(sum([each.item.work for each in batch.requests if each.rows]))

    def clear(self) -> list[Any]:
        """Remove and return all requests, whose messages go back to the broker."""
        with self._lock:
            removed = [request.item for request in self._queue.clear()]
            removed += self.take_set_aside()
        for task_request in removed:
            task_ready(task_request)
        return removed

    def drop(self, tags: set[str]) -> None:
        """Drop the requests whose messages have gone to another worker, by delivery tag."""

        def is_lost(task_request: Any) -> bool:
            return task_request.message.delivery_tag in tags

        with self._lock:
            removed = self._queue.remove(lambda request: is_lost(request.item))
            lost = [request.item for request in removed]
            lost += self.take_set_aside(is_lost)
        for task_request in lost:
            task_ready(task_request)

    @property
    def is_paused(self) -> bool:
        """Whether new requests are set aside."""
        return bool(self._paused_by)

    def is_paused_by(self, owner: object) -> bool:
        """Return whether this owner has paused the task and not resumed it."""
        return owner in self._paused_by

    def pause(self, owner: object) -> None:
        """Pause the task until each owner that paused it has resumed it."""
        with self._lock:
            self._paused_by.add(owner)
            # What is acknowledged, or runs alone, stays: no broker has its message.
            for request in self._queue.remove(
                lambda request: not (request.alone or request.item.acknowledged)
            ):
                self.set_aside(request.item)

    def resume(self, owner: object) -> list[Any]:
        """Resume the task for an owner; return the requests that no owner keeps set aside."""
        with self._lock:
            self._paused_by.discard(owner)
            return [] if self._paused_by else self.take_set_aside()

    def set_aside(self, task_request: Any) -> None:
        """Set Celery's request aside until the task is resumed or its message is given back."""
        self._measure(task_request)
        self._set_aside.append(task_request)

    def take_set_aside(self, is_wanted: Callable[[Any], bool] = lambda _: True) -> list[Any]:
        """Remove and return requests that were set aside."""
        all_of_them, self._set_aside = self._set_aside, []
        taken: list[Any] = []
        for request in all_of_them:
            (taken if is_wanted(request) else self._set_aside).append(request)
        return taken

    @property
    def oldest_age(self) -> float:
        """Seconds since the oldest request arrived that waits or is set aside; 0 without one."""
        oldest: float = min([self.oldest, *(request.arrived for request in self._set_aside)])
        return max(time.monotonic() - oldest, 0.0)

    def report(self, tally: Tally) -> dict[str, Any]:
        """Return the policy and the counts of a task queue; times in seconds."""
        policy = self.policy
        report = (
            self._options_report(tally)
            | self.history.report()
            | {
                "max_batch_size": policy.max_batch_size,
                "max_wait": policy.max_wait,
                "linger": policy.linger_seconds,
                "low_priority_share": policy.low_priority_share,
                "device_share": policy.device_share,
                "waiting": len(self._queue) + len(self._set_aside),
                "model_calls": tally.calls,
                "worker_losses": tally.losses,
                "oldest_age": round(self.oldest_age, 6),
            }
        )
        if collating := self.history.usual_collating:
            report["collate_seconds"] = round(collating, 6)
        if self.target is not None:
            report |= self.target.report()
        return report

    def _options_report(self, tally: Tally) -> dict[str, Any]:
        """Return what there is only with certain options of the task."""
        policy, task, reuse = self.policy, self.task, tally.reuse
        report: dict[str, Any] = {}
        if isinstance(self._batcher, KeyedBatcher):
            report["keys"] = self._batcher.keys
        if policy.max_batch_cost is not None:
            call_cost = self.call_cost.value
            report["max_batch_cost"] = policy.max_batch_cost
            report["padded"] = policy.padded
            report["sort_window"] = policy.sort_window
            report["call_cost"] = round(call_cost, 3) if call_cost < inf else None
            report["cost"] = tally.cost
            report["padded_cost"] = tally.padded_cost
        has_cache = task.cache_ttl is not None  # also while an operator has turned it off
        if has_cache:
            report |= {"cache_hits": reuse.hits, "cache_misses": reuse.misses}
        if has_cache or task.dedupe:
            report["duplicates"] = reuse.duplicates
        if policy.batch_sizes:
            report |= {"batch_sizes": [*policy.batch_sizes], "padding_rows": tally.padding_rows}
        if policy.batch_lengths:
            report["batch_lengths"] = [*policy.batch_lengths]
        return report
