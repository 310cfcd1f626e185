"""How a batch ended, and what follows for each of its requests.

Rule 1: a request that can run again runs again alone, if its batch ended in a way
        that one of its items may be to blame for.
Rule 2: nobody is run more than once who was acknowledged before the start.
Rule 3: a request that was alone when its process died, often enough, is poison.
Rule 4: decisions are values; the lanes carry them out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state

from celery_batch.batching.isolation import Verdict, after_loss
from celery_batch.config import max_worker_losses
from celery_batch.errors import PoisonItem
from celery_batch.telemetry.report import NO_WORK, Work
from celery_batch.worker.dispatch.notification import Notification, is_routine

__all__ = [
    "BatchEnd",
    "Ending",
    "FollowUp",
    "Refused",
    "Settled",
    "after_answer",
    "after_failure",
    "error_info",
    "give_up",
    "not_run",
]


#: What Celery's request handler expects of a finished task: failed, result or error, runtime.
Settled = tuple[int, Any, float]


class FollowUp(Enum):
    """What kept requests from having an answer."""

    BROKE_OFF = auto()  # the run ended early, and one of them may be to blame
    NOT_STORED = auto()  # they ran, and their results could not be stored
    REFUSED = auto()  # the process was of no use, and ran nothing


@dataclass(frozen=True, slots=True)
class Refused:
    """
    A message whose body is not what it has to be, as its pool process was the first to see.

    Args:
        reason: What is wrong with it.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """
    What a pool process says of a batch.

    Args:
        settled: For each request what Celery's tracer made of it, in order; the error of
            one whose failure is still to be stored; `Refused` for one that is none; None for
            one that has no answer and is to run again.
        work: What it was to the model.
        safe_size: Most items that fit into memory; None if nothing ran out of it.
        broken: Why this process is of no more use, if it is.
        follow_up: What kept those that have no answer from it.
    """

    settled: list[Settled | ExceptionInfo | Refused | None]
    work: Work = NO_WORK
    safe_size: int | None = None
    broken: str | None = None
    follow_up: FollowUp = FollowUp.BROKE_OFF


def error_info(error: Exception) -> ExceptionInfo:
    """Wrap an error as the pool would."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


logger = logging.getLogger(__name__)


#: Seconds that items get to run alone once the time limit of their batch has struck.
_GRACE = 4.0


@dataclass(slots=True)
class Ending:
    """
    What follows a batch.

    Args:
        news: What is left to tell its requests.
        done: Requests whose success is told as a matter of routine.
        refused: Requests of messages that are none, with what is wrong with them.
        alone: Requests to run again, each by itself.
        again: Requests to run again like any other: the batch never began.
        poison: Requests that take processes down, with the error that their news tells.
    """

    news: list[Notification] = field(default_factory=list)
    alone: list[Any] = field(default_factory=list)
    again: list[Any] = field(default_factory=list)
    poison: list[tuple[Any, PoisonItem]] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    refused: list[tuple[Any, str]] = field(default_factory=list)


def after_answer(requests: Sequence[Any], end: BatchEnd, *, began: float) -> Ending:
    """
    Return what follows when the pool process has answered.

    Args:
        requests: The batch's requests.
        end: What the process said, one entry for each request.
        began: When it took the batch, on the monotonic clock.
    """
    ending = Ending()
    for request, settled in zip(requests, end.settled, strict=True):
        if isinstance(settled, Refused):
            ending.refused.append((request, settled.reason))
        elif isinstance(settled, ExceptionInfo):
            ending.news.append(Notification(request, request.on_failure, (settled,)))
        elif settled is not None and not settled[0] and is_routine(request):
            ending.done.append(request)
        elif settled is not None:
            ending.news.append(Notification(request, request.on_success, (settled,)))
        elif request.has_expired:
            ending.news.append(Notification(request, request.revoked, ()))
        elif end.follow_up is not FollowUp.REFUSED and not request.task.acks_late:
            ending.news += not_run(request, _explain(end)).news
        elif end.follow_up is FollowUp.BROKE_OFF:
            _set_deadline(request, _soft_limit(request), began)
            ending.alone.append(request)
        else:
            ending.again.append(request)
    return ending


def _explain(end: BatchEnd) -> str:
    what = "its result could not be stored" if end.follow_up is FollowUp.NOT_STORED else end.broken
    return f"{what}; it was acknowledged before it ran, and may not run twice"


def after_failure(
    task: Any, requests: Sequence[Any], einfo: Any, *, began: float | None, was_alone: bool
) -> Ending:
    """
    Return what follows when the pool reports an error in place of an answer.

    Args:
        task: The batch task.
        requests: The batch's requests.
        einfo: The pool's error: the process died, or took too long, or could not answer.
        began: When the process took the batch, on the monotonic clock; None if none did.
        was_alone: One request was all there was in the process.
    """
    error = _unwrap(einfo)
    if state.should_terminate or not task.acks_late:
        return _all_fail(requests, einfo, error)
    if isinstance(error, TimeLimitExceeded):
        return _after_limit(requests, einfo, error, began=began)
    if not isinstance(error, (WorkerLostError, SystemExit)):
        return _all_fail(requests, einfo, error)
    ending = Ending()
    for request in requests:
        _after_loss(task, request, einfo, ending, was_alone=was_alone)
    return ending


def give_up(request: Any) -> Ending:
    """Return the end of a request that could not be run again in the time it was left."""
    einfo = error_info(TimeLimitExceeded(request.limit))
    return _all_fail([request], einfo, TimeLimitExceeded(request.limit))


def not_run(request: Any, why: str = "the worker stopped before it could run this again") -> Ending:
    """
    Return the end of a request that cannot run again, and that has no message left.

    Args:
        request: Celery's request.
        why: What its caller is told.
    """
    error = WorkerLostError(why)
    return _all_fail([request], error_info(error), error)


def _after_loss(task: Any, request: Any, einfo: Any, ending: Ending, *, was_alone: bool) -> None:
    if request.is_cancelled:
        return  # not lost but stopped, and its message goes back
    if request.is_done or request.has_succeeded:
        ending.news.append(Notification(request, request.on_failure, (einfo,)))
        return
    request.losses += 1
    limit = max_worker_losses(task)
    if after_loss(request.losses, was_alone=was_alone, max_losses=limit) is Verdict.ALONE:
        ending.alone.append(request)
        return
    error = PoisonItem(
        f"{request.name}[{request.id}]: took down the process that ran it {request.losses} times;"
        f" the last time: {_unwrap(einfo)}"
    )
    logger.error("%s", error)
    ending.poison.append((request, error))
    ending.news.append(Notification(request, request.on_failure, (error_info(error),)))


def _after_limit(requests: Sequence[Any], einfo: Any, error: Any, *, began: float | None) -> Ending:
    if len(requests) == 1 or began is None:
        limit = requests[0].limit  # the task's own; what was left of it for the last try is less
        if limit is not None:
            error = TimeLimitExceeded(limit)
            einfo = error_info(error)
        return _all_fail(requests, einfo, error)
    ending = Ending()
    for request in requests:
        if request.is_done or request.has_succeeded:
            ending.news.append(Notification(request, request.on_failure, (einfo,)))
            continue
        _set_deadline(request, error.args[0], began)
        ending.alone.append(request)
    return ending


def _all_fail(requests: Iterable[Any], einfo: Any, error: Any) -> Ending:
    limit = error.args[0] if isinstance(error, TimeLimitExceeded) and error.args else None
    return Ending(
        [Notification(request, partial(_fail, request, limit), (einfo,)) for request in requests]
    )


def _fail(request: Any, limit: float | None, einfo: Any) -> None:
    """Tell a request of its failure, and of the hard limit behind it if there was one."""
    request.on_failure(einfo)
    if limit is not None:  # the pool's own order of these two
        request.on_timeout(False, limit)  # noqa: FBT003 (Celery's signature)


def _set_deadline(request: Any, limit: float | None, began: float) -> None:
    if limit is not None and request.deadline is None:
        request.limit, request.deadline = limit, began + limit + _GRACE


def _soft_limit(request: Any) -> float | None:
    own = request.time_limits[1] or request.task.soft_time_limit
    return own or None


def _unwrap(einfo: Any) -> Any:
    error = einfo.exception
    return getattr(error, "exc", error)
