"""
Records and logs the outcome of each batch.

The main process does so when a batch has ended, as it knows of each batch on any pool.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals

from celery_batch.task import BatchTask
from celery_batch.telemetry.meter import Meter
from celery_batch.telemetry.report import NO_WORK, BatchReport, End, RequestEnd
from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.dispatch.follow_up import FollowUp, Unanswered
from celery_batch.worker.scheduling.slots import Slots

__all__ = ["BatchRecorder"]

#: One line for each batch, at INFO; one for each of its requests, at DEBUG.
logger = logging.getLogger("celery_batch.batches")

_ENDS = {
    Unanswered.NOT_STORED: End.NOT_STORED,
    Unanswered.NOT_STARTED: End.REFUSED,
    Unanswered.NOT_READ: End.REFUSED,
    Unanswered.INTERRUPTED: End.BROKE_OFF,
}


def _end_of(job: BatchJob, follow_up: FollowUp) -> End:
    """Return how a batch ended as a whole."""
    answer, error = job.answer, job.error
    if answer is not None:
        return _ENDS[answer.unanswered] if follow_up.has_unanswered else End.ANSWERED
    if isinstance(error, TimeLimitExceeded):
        return End.TIME_LIMIT
    is_lost = isinstance(error, WorkerLostError) or not isinstance(error, Exception)
    return End.LOST if is_lost else End.ERROR


def _count_outcomes(job: BatchJob, follow_up: FollowUp) -> Counter[RequestEnd]:
    """Count the outcomes of a batch's requests, without those that Celery's signals announce."""
    outcomes = Counter(_outcomes_of(job, follow_up))
    del outcomes[RequestEnd.EXPIRED], outcomes[RequestEnd.REVOKED]
    return outcomes


def _outcomes_of(job: BatchJob, follow_up: FollowUp) -> list[RequestEnd]:
    """Return the outcome of each request of a batch."""
    usual = RequestEnd.FAILED if job.answer is None else RequestEnd.SUCCEEDED
    return [
        RequestEnd.REVOKED if each.is_done else follow_up.outcomes.get(each, usual)
        for each in job.requests
    ]


class BatchRecorder:
    """Counts the batches of one worker."""

    def __init__(self) -> None:
        self._meter = Meter(time.monotonic())
        self._has_begun = False
        #: Pools may report the end of a batch on threads, and in a signal handler.
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Start to count, when the pool is ready; called for each new connection."""
        if not self._has_begun:
            self._has_begun = True
            self._meter = Meter(time.monotonic())
            # Before 5.7 Celery takes one method of two objects for the same receiver.
            signals.task_revoked.connect(self._on_revoked, dispatch_uid=id(self))

    @contextmanager
    def counts(self) -> Iterator[Meter]:
        """Yield all counts, to which nothing is added meanwhile."""
        with self._lock:
            yield self._meter

    def idle_seconds(self, slots: Slots) -> float:
        """Return for how many seconds processes had no batch in their models, together."""
        now, busy, processes = time.monotonic(), slots.busy(), slots.model_processes
        with self._lock:
            return self._meter.idle.seconds(now, busy, processes)

    def ended(self, job: BatchJob, follow_up: FollowUp) -> None:
        """Record a batch that has ended."""
        if not job.accepted:
            return
        report = _report(job, follow_up)
        with self._lock:
            self._meter.add(report)
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", report, extra={"batch": report.facts()})
            if logger.isEnabledFor(logging.DEBUG):
                _log_each(job, follow_up, report)

    def failed_waiting(self, request: Any) -> None:
        """Record a request that failed in its task queue, by its time limit."""
        with self._lock:
            self._meter.add_outcome(request.name, RequestEnd.FAILED)

    def _on_revoked(self, sender: Any = None, *, expired: bool = False, **_: Any) -> None:
        """Record a request that has expired or was revoked, wherever it was."""
        if isinstance(sender, BatchTask):
            with self._lock:
                self._meter.add_outcome(
                    sender.name, RequestEnd.EXPIRED if expired else RequestEnd.REVOKED
                )


def _log_each(job: BatchJob, follow_up: FollowUp, report: BatchReport) -> None:
    waits = report.waits or [0.0] * len(job.requests)
    outcomes = _outcomes_of(job, follow_up)
    for request, outcome, wait in zip(job.requests, outcomes, waits, strict=True):
        facts = {
            "task": report.task,
            "id": request.id,
            "rows": request.rows,
            "wait": wait,
            "outcome": str(outcome),
            "pid": report.pid,
        }
        text = "%(task)s[%(id)s]: waited %(wait).3f s, %(outcome)s"
        logger.debug(text, facts, extra={"item": facts})


def _report(job: BatchJob, follow_up: FollowUp) -> BatchReport:
    work = job.answer.work if job.answer is not None else NO_WORK
    began = work.began
    return BatchReport(
        task=job.task.name,
        requests=len(job.requests),
        rows=job.rows,
        most=job.max_rows,
        most_cost=math.inf if job.cost_limits is None else job.cost_limits.cost,
        reason=job.reason,
        end=_end_of(job, follow_up),
        outcomes=_count_outcomes(job, follow_up),
        # A redelivered request that replaces another has not waited here.
        waits=[began - (each.arrived or began) for each in job.requests] if began else [],
        work=work,
        poison=len(follow_up.poison),
        pid=job.pid,
        taken=None if job.began is None else (job.began, time.monotonic()),
    )
