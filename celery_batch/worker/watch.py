"""
Tells what each batch was: adds it up, and says so in the log.

Rule 1: one look at a batch, when it is over, in the consumer process, which hears of
        every batch of its worker, on whatever pool.
Rule 2: whatever goes wrong here is nobody's error but ours.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from celery.exceptions import Ignore, Reject, Retry

from celery_batch.task import BatchTask
from celery_batch.telemetry.meter import Meter
from celery_batch.telemetry.report import NO_WORK, BatchReport, End, Outcome
from celery_batch.worker.batch_end import Fate, Settled
from celery_batch.worker.ending import Ending
from celery_batch.worker.job import BatchJob

__all__ = ["Watch"]

#: One line for each batch, at INFO; one for each of its requests, at DEBUG.
logger = logging.getLogger("celery_batch.batches")

_own_logger = logging.getLogger(__name__)

T = TypeVar("T")

_FATES = {Fate.NOT_STORED: End.NOT_STORED, Fate.REFUSED: End.REFUSED, Fate.BROKE_OFF: End.BROKE_OFF}


class Watch:
    """Is told what batches were, and asked what they came to."""

    def __init__(self) -> None:
        self._meter = Meter(time.monotonic(), 0)
        self._has_begun = False
        #: Pools may tell of an end on threads, and a signal's handler on top of us.
        self._lock = threading.RLock()

    def begin(self, processes: int) -> None:
        """
        Count from now on; called for each new connection.

        Args:
            processes: How many pool processes are ready for batches.
        """
        if not self._has_begun:
            self._has_begun = True
            self._meter = Meter(time.monotonic(), processes)
            signals.task_revoked.connect(self._announced)

    def ask(self, question: Callable[[Meter], T]) -> T:
        """Return what the meter says to a question, while nothing is added."""
        with self._lock:
            return question(self._meter)

    def ended(self, job: BatchJob, ending: Ending) -> None:
        """
        Take note of a batch that is over.

        Args:
            job: The batch.
            ending: What follows for its requests.
        """
        if job.accepted:
            with _unharmed():
                self._add(job, _report(job, ending))

    def gave_up(self, request: Any) -> None:
        """Take note of a request that failed in its lane, out of time."""
        with self._lock:
            self._meter.add_outcome(request.name, Outcome.FAILED)

    def _announced(self, sender: Any = None, *, expired: bool = False, **_: Any) -> None:
        """Take note of a request that nobody wanted any more, wherever it was then."""
        if isinstance(sender, BatchTask):
            with self._lock:
                self._meter.add_outcome(
                    sender.name, Outcome.EXPIRED if expired else Outcome.REVOKED
                )

    def _add(self, job: BatchJob, report: BatchReport) -> None:
        with self._lock:
            self._meter.add(report)
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", report, extra={"batch": report.facts()})
            if logger.isEnabledFor(logging.DEBUG):
                _log_each(job, report)


@contextmanager
def _unharmed() -> Iterator[None]:
    try:
        yield
    except Exception:
        _own_logger.exception("Could not take note of a batch")


def _log_each(job: BatchJob, report: BatchReport) -> None:
    answer, began = job.answer, report.work.began
    for number, request in enumerate(job.requests):
        settled = answer.settled[number] if answer is not None else None
        facts = {
            "task": report.task,
            "id": request.id,
            "rows": request.rows,
            "wait": None if began is None else _wait(request, began),
            "outcome": str(_outcome(request, settled)),
            "pid": report.pid,
        }
        text = "%(task)s[%(id)s]: waited %(wait)s s, %(outcome)s"
        logger.debug(text, facts, extra={"item": facts})


def _report(job: BatchJob, ending: Ending) -> BatchReport:
    work = job.answer.work if job.answer is not None else NO_WORK
    began = work.began
    return BatchReport(
        task=job.task.name,
        requests=len(job.requests),
        rows=job.rows,
        most=job.room,
        reason=job.reason,
        end=_end(job),
        outcomes=_outcomes(job, ending),
        waits=[] if began is None else [_wait(request, began) for request in job.requests],
        work=work,
        poison=len(ending.poison),
        pid=job.pid,
    )


def _wait(request: Any, began: float) -> float:
    # One that has come again in the place of its former self has not waited here.
    return 0.0 if request.arrived is None else began - request.arrived


def _end(job: BatchJob) -> End:
    answer = job.answer
    if answer is None:
        error = _unwrapped(job.error)
        if isinstance(error, TimeLimitExceeded):
            return End.TIME_LIMIT
        return End.LOST if isinstance(error, (WorkerLostError, SystemExit)) else End.ERROR
    return _FATES[answer.fate] if None in answer.settled else End.ANSWERED


def _outcomes(job: BatchJob, ending: Ending) -> Counter[Outcome]:
    answer = job.answer
    if answer is None:
        count = len(ending.alone) + len(ending.again)
        return +Counter({Outcome.FAILED: len(ending.news), Outcome.AGAIN: count})
    if len(ending.done) == len(job.requests) and not any(each.is_done for each in ending.done):
        return Counter({Outcome.SUCCEEDED: len(job.requests)})
    again = {id(request) for request in (*ending.alone, *ending.again)}
    outcomes = Counter(
        Outcome.AGAIN if id(request) in again else _outcome(request, settled)
        for request, settled in zip(job.requests, answer.settled, strict=True)
    )
    # Whose end is announced by other ways is counted there.
    del outcomes[Outcome.EXPIRED], outcomes[Outcome.REVOKED]
    return outcomes


def _outcome(request: Any, settled: Settled | ExceptionInfo | None) -> Outcome:
    if request.is_done:
        return Outcome.REVOKED
    if settled is None:
        return Outcome.EXPIRED if request.has_expired else Outcome.FAILED
    if isinstance(settled, ExceptionInfo):
        return Outcome.FAILED
    if not settled[0]:
        return Outcome.SUCCEEDED
    error = _unwrapped(settled[1].exception)
    if isinstance(error, Retry):
        return Outcome.RETRIED
    return Outcome.REJECTED if isinstance(error, (Ignore, Reject)) else Outcome.FAILED


def _unwrapped(error: Any) -> Any:
    """Return the error itself, which the pools that are no processes hand over wrapped."""
    return error.exc if isinstance(error, ExceptionWithTraceback) else error
