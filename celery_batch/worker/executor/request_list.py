"""
Runs a batch of a task whose function gets the list of its requests.

Nothing is traced for each request: signals are sent once a batch, and the function stores the
results.  Here it is noted for which requests it has done so, and which it has sent again: the
others fail where it raises, so that their callers do not wait for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.saferepr import saferepr
from celery.utils.serialization import get_pickleable_exception
from kombu.serialization import prepare_accept_content
from kombu.utils.uuid import uuid

from celery_batch.batches import SimpleRequest
from celery_batch.compat.celery import current_task
from celery_batch.compat.results import notify_of_ends
from celery_batch.telemetry.report import Work
from celery_batch.worker.dispatch.follow_up import (
    DONE,
    LASTING_ERRORS,
    BatchEnd,
    ItemEnd,
    Unanswered,
    error_info,
)
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.fast_trace import ignores_result
from celery_batch.worker.executor.stored_values import Instead, read_stored_values
from celery_batch.worker.executor.time_limit import SoftLimit
from celery_batch.worker.redis.result_backend import storing_results

__all__ = ["run_requests"]

logger = logging.getLogger(__name__)


def run_requests(task: Any, payload: BatchPayload, limit: SoftLimit) -> BatchEnd:
    """Call a task's function once, with all requests of a batch; return the outcome of each."""
    unreadable = read_stored_values(task, payload)
    results: list[ItemEnd] = [DONE] * len(payload)
    requests: dict[int, SimpleRequest] = {}
    failures = _Failures(task)
    accept = prepare_accept_content(task.app.conf.accept_content)
    for index, delivery in enumerate(payload):
        found = unreadable.get(index) or _read(delivery, accept)
        if isinstance(found, SimpleRequest):
            requests[index] = found
        elif isinstance(found, Exception):
            results[index] = failures.store(delivery, Context(delivery.request), found)
        elif found is Instead.LATER:
            results[index] = None
    if not requests:
        return BatchEnd(results, unanswered=Unanswered.NOT_READ)
    began = time.monotonic()
    with (
        storing_results(task, together=False),
        _known_ends.noted(task, shown=payload.has_watchers) as ends,
    ):
        failure = _call(task, list(requests.values()), limit)
        ended = time.monotonic()
        for index, request in requests.items():
            if failure is not None and request.id not in ends:
                results[index] = failures.store(payload[index], request, failure)
                continue
            results[index] = (*_outcome(ends.get(request.id)), ended - began)
    work = Work(1, began, ended, ended - began, rows=len(requests))
    return BatchEnd(results, work, unanswered=failures.unanswered, stored=time.monotonic())


def _outcome(end: _End | None) -> tuple[int, Any]:
    """Return what Celery's handler gets: 0 and what events show, or 1 and the error."""
    if end is not None and end.error is not None:
        einfo = error_info(end.error)
        if end is _SENT_AGAIN:
            einfo.traceback = ""  # ours, which says nothing
        return 1, einfo
    return 0, None if end is None else end.shown


def _read(delivery: Delivery, accept: Any) -> SimpleRequest | Exception:
    """Return what the function gets of a delivery, or why it cannot be read."""
    try:
        parts = delivery.decode(accept)
        return SimpleRequest.from_headers(delivery.task_id, delivery.request, *parts)
    except Exception as error:  # noqa: BLE001 (a malformed body, or no memory)
        return error


def _call(task: Any, requests: Sequence[SimpleRequest], limit: SoftLimit) -> Exception | None:
    """Call the function with Celery's signals, and return what it raised."""
    task_id, arguments = uuid(), (requests,)
    about = {"task_id": task_id, "args": arguments, "kwargs": {}}
    value, state = None, states.FAILURE
    failure: Exception | None = None
    with current_task(task, Context(id=task_id, args=arguments, kwargs={})):
        signals.task_prerun.send(sender=task, task=task, **about)
        try:
            try:
                with limit.in_model():
                    value = task(*arguments)
            except Exception as error:
                logger.exception("%s raised for a batch of %d", task.name, len(requests))
                failure = error
                signals.task_failure.send(
                    sender=task,
                    exception=error,
                    traceback=error.__traceback__,
                    einfo=ExceptionInfo(),
                    **about,
                )
            else:
                state = states.SUCCESS
                signals.task_success.send(sender=task, result=value)
        finally:
            signals.task_postrun.send(sender=task, task=task, retval=value, state=state, **about)
    return failure


@dataclass(frozen=True, slots=True)
class _End:
    """How a call has ended: with an error, `Retry` where it was sent again, or with a value."""

    error: Exception | None
    #: The value as events show it; None where none do.
    shown: str | None = None


_SENT_AGAIN = _End(Retry(exc=RuntimeError("sent again by the function")))


class _KnownEnds:
    """Notes which calls have an end that is stored, or are sent again, while batches run."""

    def __init__(self) -> None:
        #: Of each batch that runs now; on the threads pool there may be several.
        self._noted: list[tuple[dict[str, _End], int | None]] = []
        self._lock = threading.Lock()

    @contextmanager
    def noted(self, task: Any, *, shown: bool) -> Iterator[dict[str, _End]]:
        """Yield a dict that gets the ids of calls that end meanwhile, and how."""
        noted: dict[str, _End] = {}
        entry = noted, task.resultrepr_maxsize if shown else None
        with self._lock:
            notify_of_ends(type(task.backend), self._note)
            if not self._noted:  # not always: publishing is slower with a receiver
                signals.after_task_publish.connect(self._on_publish, weak=False)
            self._noted.append(entry)
        try:
            yield noted
        finally:
            with self._lock:
                self._noted = [each for each in self._noted if each[0] is not noted]
                if not self._noted:
                    signals.after_task_publish.disconnect(self._on_publish)

    def _on_publish(self, headers: Any = None, body: Any = None, **_: Any) -> None:
        found = headers.get("id") if headers else None
        if found is None and isinstance(body, dict):  # Celery's older protocol
            found = body.get("id")
        for noted, _most in self._noted:
            noted[str(found)] = _SENT_AGAIN

    def _note(self, task_id: str, error: Any, value: Any) -> None:
        known = get_pickleable_exception(error) if isinstance(error, Exception) else None
        for noted, most in self._noted:
            is_shown = most is not None and known is None
            noted[task_id] = _End(known, saferepr(value, most) if is_shown else None)


_known_ends = _KnownEnds()


class _Failures:
    """Stores which requests of a batch have failed; what it cannot store runs again."""

    def __init__(self, task: Any) -> None:
        self._task = task
        #: What it means that a request has no outcome.
        self.unanswered = Unanswered.NOT_READ

    def store(self, delivery: Delivery, request: Any, error: Exception) -> ItemEnd:
        """Store a failure, and return the outcome of its request; None if it is to run again."""
        task, einfo = self._task, _info_for_worker(error)
        if isinstance(error, (Ignore, Reject)):  # the worker's handler does what they say
            return 1, einfo, 0.0
        if self.unanswered is Unanswered.NOT_STORED:
            return None  # the last one was tried for many seconds, and so would this be
        is_stored = task.store_errors_even_if_ignored or not ignores_result(task, delivery.request)
        try:
            task.backend.mark_as_failure(
                delivery.task_id,
                error,
                traceback=einfo.traceback,
                request=request,
                store_result=is_stored,
            )
        except Exception as failure:  # noqa: BLE001 (the other requests go on)
            logger.warning("Could not store that %s has failed: %s", delivery.task_id, failure)
            if task.acks_late and not isinstance(failure, LASTING_ERRORS):
                self.unanswered = Unanswered.NOT_STORED
                return None
            return einfo
        return 1, einfo, 0.0


def _info_for_worker(error: Exception) -> ExceptionInfo:
    """Wrap an error, or what can be pickled of it, with the traceback of what was raised."""
    einfo, known = error_info(error), get_pickleable_exception(error)
    if known is error:
        return einfo
    traceback = einfo.traceback
    einfo = error_info(known.with_traceback(error.__traceback__))
    einfo.traceback = traceback
    return einfo
