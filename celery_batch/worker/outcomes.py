"""How a batch ended, and what became of each of its requests, in a word."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry

from celery_batch.telemetry.report import End, Outcome
from celery_batch.worker.batch_end import BatchEnd, Fate, Refused, Settled
from celery_batch.worker.ending import Ending
from celery_batch.worker.job import BatchJob

__all__ = ["end_of", "outcome_of_each", "outcomes_of"]

_is_done = attrgetter("is_done")

_FATES = {Fate.NOT_STORED: End.NOT_STORED, Fate.REFUSED: End.REFUSED, Fate.BROKE_OFF: End.BROKE_OFF}


def end_of(job: BatchJob) -> End:
    """Return how a batch ended as a whole."""
    answer = job.answer
    if answer is not None:
        return _FATES[answer.fate] if None in answer.settled else End.ANSWERED
    error = _unwrapped(job.error)
    if isinstance(error, TimeLimitExceeded):
        return End.TIME_LIMIT
    return End.LOST if isinstance(error, (WorkerLostError, SystemExit)) else End.ERROR


def outcomes_of(job: BatchJob, ending: Ending) -> Counter[Outcome]:
    """
    Return what became of how many requests, but for those whose end Celery announces.

    Args:
        job: The batch.
        ending: What follows for its requests.
    """
    count = len(job.requests)
    if len(ending.done) == count and not any(map(_is_done, ending.done)):
        return Counter({Outcome.SUCCEEDED: count})
    outcomes = Counter(outcome_of_each(job, ending))
    del outcomes[Outcome.EXPIRED], outcomes[Outcome.REVOKED]
    return outcomes


def outcome_of_each(job: BatchJob, ending: Ending) -> list[Outcome]:
    """
    Return what became of each request of a batch.

    Args:
        job: The batch.
        ending: What follows for its requests.
    """
    again = {id(request) for request in (*ending.alone, *ending.again)}
    return [
        Outcome.AGAIN if id(request) in again else _outcome(request, job.answer, number)
        for number, request in enumerate(job.requests)
    ]


def _outcome(request: Any, answer: BatchEnd | None, number: int) -> Outcome:
    if request.is_done:
        return Outcome.REVOKED
    if answer is None:  # what Celery has stopped goes back
        return Outcome.AGAIN if request.is_cancelled else Outcome.FAILED
    settled = answer.settled[number]
    if settled is None:
        return Outcome.EXPIRED if request.has_expired else Outcome.FAILED
    return Outcome.REJECTED if isinstance(settled, Refused) else _settled(settled)


def _settled(settled: Settled | ExceptionInfo) -> Outcome:
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
