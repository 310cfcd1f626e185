"""
Runs a batch of a task whose function gets the list of its requests.

Nothing is traced for each request: signals are sent once a batch, and the function stores the
results.  Here it is noted for which requests it has done so, and which it has sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery.app.task import Context
from kombu.serialization import prepare_accept_content
from kombu.utils.uuid import uuid

from celery_batch.batches import SimpleRequest
from celery_batch.compat.celery import current_task
from celery_batch.payloads.store import StoreError
from celery_batch.telemetry.report import Work
from celery_batch.worker.dispatch.follow_up import (
    BatchEnd,
    TraceResult,
    Unanswered,
    error_info,
)
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.stored_values import Instead, read_stored_values
from celery_batch.worker.executor.time_limit import SoftLimit

__all__ = ["run_requests"]

logger = logging.getLogger(__name__)

_DONE: TraceResult = (0, None, 0.0)


def run_requests(task: Any, payload: BatchPayload, limit: SoftLimit) -> BatchEnd:
    """
    Call a task's function once, with all requests of a batch.

    Args:
        task: The `Batches` task.
        payload: The batch's requests, oldest first.
        limit: The soft time limit, which interrupts the function.

    Returns:
        The outcome of each request.
    """
    try:
        unreadable = read_stored_values(task, payload)
    except StoreError as error:
        logger.warning("Could not read what is stored beside %d messages: %s", len(payload), error)
        return BatchEnd([None] * len(payload), unanswered=Unanswered.NOT_READ)
    results: list[TraceResult | ExceptionInfo | None] = [_DONE] * len(payload)
    requests: dict[int, SimpleRequest] = {}
    accept = prepare_accept_content(task.app.conf.accept_content)
    for index, delivery in enumerate(payload):
        found = unreadable.get(index) or _read(delivery, accept)
        if isinstance(found, SimpleRequest):
            requests[index] = found
        elif isinstance(found, Exception):
            results[index] = _fail(task, delivery.task_id, Context(delivery.request), found)
        elif found is Instead.LATER:
            results[index] = None
    if not requests:
        return BatchEnd(results, unanswered=Unanswered.NOT_READ)
    began = time.monotonic()
    with _settled(task) as settled:
        failure = _call(task, list(requests.values()), limit)
        ended = time.monotonic()
        for index, request in requests.items():
            if failure is None or request.id in settled:
                results[index] = (0, None, ended - began)
            else:
                results[index] = _fail(task, request.id, request, failure)
    work = Work(1, began, ended, ended - began, rows=len(requests))
    return BatchEnd(results, work, unanswered=Unanswered.NOT_READ, stored=time.monotonic())


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
    value, state = None, states.SUCCESS
    failure: Exception | None = None
    with current_task(task, Context(id=task_id, args=arguments, kwargs={})):
        signals.task_prerun.send(sender=task, task=task, **about)
        try:
            try:
                with limit.in_model():
                    value = task(*arguments)
            except Exception as error:
                logger.exception("%s raised for a batch of %d", task.name, len(requests))
                failure, state, einfo = error, states.FAILURE, ExceptionInfo()
                signals.task_failure.send(
                    sender=task,
                    exception=error,
                    traceback=error.__traceback__,
                    einfo=einfo,
                    **about,
                )
            else:
                signals.task_success.send(sender=task, result=value)
        finally:
            signals.task_postrun.send(sender=task, task=task, retval=value, state=state, **about)
    return failure


@contextmanager
def _settled(task: Any) -> Iterator[set[str]]:
    """Yield a set that gets the ids of calls whose end is stored, or that are sent again."""
    settled: set[str] = set()
    backend = task.backend
    own = backend.store_result

    def store_result(task_id: str, result: Any, state: str, *args: Any, **options: Any) -> Any:
        found = own(task_id, result, state, *args, **options)
        if state in states.READY_STATES:
            settled.add(task_id)
        return found

    def note_sent(headers: Any = None, **_: Any) -> None:
        settled.add(str((headers or {}).get("id")))

    backend.store_result = store_result
    signals.before_task_publish.connect(note_sent, weak=False)
    try:
        yield settled
    finally:
        signals.before_task_publish.disconnect(note_sent)
        del backend.store_result


def _fail(task: Any, task_id: str, request: Any, error: Exception) -> TraceResult | ExceptionInfo:
    """Store a failure; the worker stores it if that fails."""
    einfo = error_info(error)
    try:
        task.backend.mark_as_failure(task_id, error, traceback=einfo.traceback, request=request)
    except Exception as failure:  # noqa: BLE001 (the other requests go on)
        logger.warning("Could not store that %s has failed: %s", task_id, failure)
        return einfo
    return 1, einfo, 0.0
