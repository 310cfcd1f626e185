"""How a batch ended, and what follows for each of its requests.

Rule 1: if a batch ended in a way that one of its items may have caused, each request that
        can run again runs again alone.
Rule 2: a request that was acknowledged before the start never runs twice.
Rule 3: a request that was alone when its process died, often enough, is poison.
Rule 4: decisions are values; the scheduler carries them out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state
from kombu.exceptions import EncodeError

from celery_batch.compat.celery import context_of
from celery_batch.config import max_worker_losses
from celery_batch.errors import PoisonItem
from celery_batch.telemetry.report import NO_WORK, RequestEnd, Work

__all__ = [
    "DONE",
    "LASTING_ERRORS",
    "BatchEnd",
    "FollowUp",
    "HandlerCall",
    "ItemEnd",
    "Refused",
    "Unanswered",
    "after_answer",
    "after_failure",
    "deadline_passed",
    "error_info",
    "not_run",
    "unwrapped",
]

logger = logging.getLogger(__name__)

#: Seconds that items get to run again alone after the time limit of their batch, beyond that
#: limit; and how much longer than at the worker's start the loads in that time may take in all:
#: that of the batch's process, and of one more if an item is over the limit again.
_GRACE, _LOADS = 4.0, 3.0

#: Errors of a value that cannot be stored, now or later.
LASTING_ERRORS = (EncodeError, TypeError, ValueError)


class Unanswered(Enum):
    """Why some requests of a batch have no answer."""

    INTERRUPTED = auto()  # the run ended early, and one of them may be the cause
    NOT_STORED = auto()  # they ran, and their results could not be stored
    NOT_STARTED = auto()  # the process cannot use its device, and ran nothing
    NOT_READ = auto()  # what is stored beside their messages is not to be had now


#: After which a request may run again that was acknowledged before: it has not run.
_HARMLESS = (Unanswered.NOT_STARTED, Unanswered.NOT_READ)


@dataclass(frozen=True, slots=True)
class Refused:
    """A malformed body that the pool process was the first to decode."""

    reason: str


#: How a request has ended in the pool process.  What Celery's handler expects of a finished task:
#: failed, result or error, runtime; the error of one whose failure is still to be stored; None for
#: one that has no answer and is to run again.
ItemEnd: TypeAlias = tuple[int, Any, float] | ExceptionInfo | Refused | None

#: Of a request for which nothing is left to do.
DONE: ItemEnd = (0, None, 0.0)


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """What a pool process returns for a batch."""

    results: list[ItemEnd]  # of its requests, in order
    work: Work = NO_WORK  # what the model did for it
    #: Most items, or the highest cost, that fit into memory; None until it ran out.
    safe_size: float | None = None
    broken: str | None = None  # why this process cannot use its device any more, if it cannot
    #: Why some requests have no answer, if some have none.
    unanswered: Unanswered = Unanswered.INTERRUPTED
    stored: float | None = None  # when the results were stored, on the monotonic clock


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A call of one handler of Celery's request."""

    request: Any
    handler: Callable[..., Any]
    arguments: tuple[Any, ...]

    def call(self) -> bool:
        """Call the handler; return False if nothing can be stored, so that it must run again."""
        if self.request.is_done:  # revoked while it ran: its end has been announced
            return True
        try:
            with self.request.acknowledging_last():
                self.handler(*self.arguments)
        except Exception as error:
            logger.exception("Could not finish %s[%s]", self.request.name, self.request.id)
            return self.request.acknowledged or self._fail(error)
        return True

    def _fail(self, error: Exception) -> bool:
        request = self.request
        try:
            if not request.has_succeeded:  # else only what follows a success has failed
                try:
                    context = context_of(request)
                    request.task.backend.mark_as_failure(request.id, error, request=context)
                except LASTING_ERRORS:
                    logger.exception(
                        "The result of %s[%s] cannot be stored", request.name, request.id
                    )
            request.acknowledge()
        except Exception as failure:  # noqa: BLE001 (what cannot be stored is computed again)
            logger.warning("%s[%s] runs again: %s", request.name, request.id, failure)
            return False
        return True


def error_info(error: Exception) -> ExceptionInfo:
    """Wrap an error as the pool would."""
    traceback = error.__traceback__
    try:
        raise error
    except type(error):
        return ExceptionInfo()
    finally:  # else it would grow with each request that the error is for
        error.__traceback__ = traceback


@dataclass(slots=True)
class FollowUp:
    """What follows a batch."""

    #: Calls of its requests' handlers.
    handler_calls: list[HandlerCall] = field(default_factory=list)
    #: Requests to run again; suspects among them in batches of their own.
    run_again: list[Any] = field(default_factory=list)
    #: Requests that kill processes, with the error that their handlers get.
    poison: list[tuple[Any, PoisonItem]] = field(default_factory=list)
    succeeded: list[Any] = field(default_factory=list)  # requests whose success is routine
    #: Requests with malformed bodies, and what is wrong with them.
    refused: list[tuple[Any, str]] = field(default_factory=list)
    #: The outcomes of requests that are not the usual ones: success, or failure without an answer.
    outcomes: dict[Any, RequestEnd] = field(default_factory=dict)
    #: Whether a request was to run and has no answer; an expired one was not to run.
    has_unanswered: bool = False

    def call(self, outcome: RequestEnd, request: Any, handler: Any, *arguments: Any) -> None:
        """Add a call of a handler of a request with this outcome."""
        self.outcomes[request] = outcome
        self.handler_calls.append(HandlerCall(request, handler, arguments))

    def repeat(self, request: Any) -> None:
        """Add a request that is to run again."""
        self.outcomes[request] = RequestEnd.AGAIN
        self.run_again.append(request)


def after_answer(requests: Sequence[Any], end: BatchEnd, *, began: float) -> FollowUp:
    """Return what follows when the pool process has answered."""
    follow_up = FollowUp()
    for request, result in zip(requests, end.results, strict=True):
        if result is None:
            _after_no_answer(request, end, follow_up, began)
        elif isinstance(result, Refused):
            follow_up.outcomes[request] = RequestEnd.REJECTED
            follow_up.refused.append((request, result.reason))
        elif isinstance(result, ExceptionInfo):
            follow_up.call(RequestEnd.FAILED, request, request.on_failure, result)
        elif result[0]:
            follow_up.call(_outcome_of(result[1]), request, request.on_success, result)
        elif request.is_routine:
            follow_up.succeeded.append(request)
        else:
            follow_up.call(RequestEnd.SUCCEEDED, request, request.on_success, result)
    return follow_up


def _outcome_of(einfo: Any) -> RequestEnd:
    """Return what became of a request whose tracer has stored an error."""
    error = unwrapped(einfo)
    if isinstance(error, Retry):
        return RequestEnd.RETRIED
    return RequestEnd.REJECTED if isinstance(error, (Ignore, Reject)) else RequestEnd.FAILED


def _after_no_answer(request: Any, end: BatchEnd, follow_up: FollowUp, began: float) -> None:
    if request.has_expired or request.is_done:
        follow_up.call(RequestEnd.EXPIRED, request, request.revoked)
        return
    follow_up.has_unanswered = True
    if end.unanswered not in _HARMLESS and not request.task.acks_late:
        follow_up.outcomes[request] = RequestEnd.FAILED
        follow_up.handler_calls += not_run(request, _explain(end))
        return
    request.is_suspect = end.unanswered is Unanswered.INTERRUPTED
    request.waits_anew = end.unanswered is Unanswered.NOT_READ
    if request.is_suspect:
        soft_limit = request.time_limits[1] or request.task.soft_time_limit or None
        _set_deadline(request, soft_limit, began)
    follow_up.repeat(request)


def _explain(end: BatchEnd) -> str:
    not_stored = end.unanswered is Unanswered.NOT_STORED
    what = "its result could not be stored" if not_stored else end.broken
    return f"{what}; it was acknowledged before it ran, and may not run twice"


def after_failure(
    task: Any,
    requests: Sequence[Any],
    einfo: Any,
    *,
    began: float | None,
    was_alone: bool,
    load_seconds: float = 0.0,  # for which a process that replaces another loads its models
) -> FollowUp:
    """Return what follows when the pool reports an error instead of an answer."""
    error = unwrapped(einfo)
    if not isinstance(error, Exception):  # an exit, a cancellation, a panic: Celery stores no such
        error = WorkerLostError(repr(error))
        einfo = error_info(error)
    if not state.should_terminate and task.acks_late:
        if isinstance(error, TimeLimitExceeded) and task.traces_items:
            return _after_time_limit(requests, einfo, error, began, load_seconds)
        if isinstance(error, WorkerLostError):
            follow_up = FollowUp()
            for request in requests:
                _after_loss(task, request, einfo, follow_up, was_alone=was_alone)
            return follow_up
    return FollowUp(_fail_all(requests, einfo))


def deadline_passed(request: Any) -> list[HandlerCall]:
    """Fail a request that could not run again in the time that its time limit left it."""
    return _fail_all([request], error_info(TimeLimitExceeded(request.limit)))


def not_run(
    request: Any, why: str = "the worker stopped before it could run this again"
) -> list[HandlerCall]:
    """Fail a request that cannot run again, and whose message is acknowledged."""
    return _fail_all([request], error_info(WorkerLostError(why)))


def _after_loss(
    task: Any, request: Any, einfo: Any, follow_up: FollowUp, *, was_alone: bool
) -> None:
    if request.is_cancelled:
        follow_up.outcomes[request] = RequestEnd.AGAIN
        return  # Celery has stopped it, and its message goes back
    if request.is_done or request.has_succeeded:
        follow_up.call(RequestEnd.FAILED, request, request.on_failure, einfo)
        return
    request.losses += 1  # which makes it a suspect
    if not was_alone or request.losses < max_worker_losses(task):
        follow_up.repeat(request)
        return
    error = PoisonItem(
        f"{request.name}[{request.id}]: took down the process that ran it {request.losses} times;"
        f" the last time: {unwrapped(einfo)}"
    )
    logger.error("%s", error)
    follow_up.poison.append((request, error))
    follow_up.call(RequestEnd.FAILED, request, request.on_failure, error_info(error))


def _after_time_limit(
    requests: Sequence[Any], einfo: Any, error: Any, began: float | None, load_seconds: float
) -> FollowUp:
    if len(requests) == 1 or began is None:
        limit = requests[0].limit  # the task's own: a request that ran again had less
        if limit is not None:
            einfo = error_info(TimeLimitExceeded(limit))
        return FollowUp(_fail_all(requests, einfo))
    follow_up = FollowUp()
    for request in requests:
        if request.is_done or request.has_succeeded:
            follow_up.call(RequestEnd.FAILED, request, request.on_failure, einfo)
        else:
            request.is_suspect = True
            _set_deadline(request, error.args[0], began + _LOADS * load_seconds)
            follow_up.repeat(request)
    return follow_up


def _fail_all(requests: Iterable[Any], einfo: Any) -> list[HandlerCall]:
    error = unwrapped(einfo)
    limit = error.args[0] if isinstance(error, TimeLimitExceeded) and error.args else None
    return [HandlerCall(request, partial(_fail, request, limit), (einfo,)) for request in requests]


def _fail(request: Any, limit: float | None, einfo: Any) -> None:
    """Call the handlers of a failure, and of the hard time limit that caused it."""
    request.on_failure(einfo)
    if limit is not None:  # the pool's own order of these two
        request.on_timeout(False, limit)  # noqa: FBT003 (Celery's signature)


def _set_deadline(request: Any, limit: float | None, began: float) -> None:
    if limit is not None and request.deadline is None:
        request.limit, request.deadline = limit, began + 2 * limit + _GRACE


def unwrapped(einfo: Any) -> Any:
    """Return the error itself, which the solo and threads pools wrap."""
    error = getattr(einfo, "exception", None)
    return error.exc if isinstance(error, ExceptionWithTraceback) else error
