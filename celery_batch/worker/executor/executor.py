"""
Runs a batch in the pool process, and traces each item as its own task.

Each item goes through Celery's own tracer, so its state, result, signals, retries and
callbacks are Celery's.  The tracers are nested: every item's tracer is entered, the model
runs once in the innermost place, and the tracers unwind.  So ``task_prerun`` and STARTED
come before the model, ``task_postrun`` after it, and each runtime covers the model call.

Each tracer has context variables of its own, as if it ran alone: otherwise what tracing and
error reporting keep there for one item (OpenTelemetry's current span, Sentry's scope) would
become the next one's parent.  The model runs in those of the last item, so that it finds
what a task class' ``__call__`` sets up.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app import app_or_default
from celery.app.task import Context
from celery.app.trace import logger as trace_logger
from celery.app.trace import trace_task
from celery.exceptions import Reject
from kombu.serialization import prepare_accept_content

from celery_batch.batches import Batches
from celery_batch.batching.batch import Reason
from celery_batch.compat.celery import encode_results_with, result_reprs
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.errors import InvalidPayload
from celery_batch.items.pending_answer import Answer, pending_answer
from celery_batch.items.rows import CallRows
from celery_batch.payloads.store import StoreError
from celery_batch.protocol import TRACK_HEADER
from celery_batch.runtime import registry
from celery_batch.runtime.runner import Outcome
from celery_batch.serialization.encode_errors import explain_encode_errors
from celery_batch.serialization.typed_json import encode_json
from celery_batch.task import BatchTask
from celery_batch.telemetry.otel import BatchSpan
from celery_batch.telemetry.report import NO_WORK, Work
from celery_batch.worker.dispatch.follow_up import (
    DONE,
    BatchEnd,
    ItemEnd,
    Refused,
    Unanswered,
    error_info,
)
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.fast_trace import (
    FastItem,
    FastTrace,
    can_trace_fast,
    has_own_call,
    ignores_result,
)
from celery_batch.worker.executor.model_call import ModelCall, broken_device
from celery_batch.worker.executor.request_list import run_requests
from celery_batch.worker.executor.row_reuse import reuse_of
from celery_batch.worker.executor.stored_values import Instead, read_stored_values
from celery_batch.worker.executor.time_limit import SoftLimit
from celery_batch.worker.intake.expiry import Expiries
from celery_batch.worker.intake.refusals import reason_of
from celery_batch.worker.redis.result_backend import (
    BulkResultWriter,
    buffered_results,
)
from celery_batch.worker.redis.result_store import temporary_errors

__all__ = ["run_batch", "trace_batch"]

logger = logging.getLogger(__name__)

#: Stack frames that one item may need: tracer, autoretry, instrumentation and our own.
_FRAMES_PER_ITEM = 16

#: Has the model called, and returns the seconds for which the call had to wait.
RunModel = Callable[[ModelCall], float]


def run_batch(
    task_name: str,
    payload: BatchPayload,
    soft_limit: float | None = None,  # noqa: ARG001 (used where worker threads are)
    limit: SoftLimit | None = None,
) -> BatchEnd | ExceptionInfo:
    """Run one batch in this process; return the outcome of each request, or what prevented it."""
    with limit or SoftLimit() as batch_limit:
        task = app_or_default().tasks.get(task_name)
        if isinstance(task, Batches):
            try:
                return run_requests(task, payload, batch_limit)
            except Exception:
                logger.exception("Could not run a batch of %s", task_name)  # as below
                return ExceptionInfo()

        def run_model(call: ModelCall) -> float:
            call(batch_limit)
            return 0.0

        return trace_batch(task_name, payload, run_model)


def trace_batch(
    task_name: str, payload: BatchPayload, run_model: RunModel
) -> BatchEnd | ExceptionInfo:
    """Run a batch within its tracers, and have its model called by `run_model`; see `run_batch`."""
    broken = broken_device()
    if broken is not None:
        return BatchEnd([None] * len(payload), broken=broken, unanswered=Unanswered.NOT_STARTED)
    try:
        registry.prepare()
        return _BatchTrace(app_or_default().tasks[task_name], payload, run_model).run()
    except Exception:
        # Two of Celery's pools drop the errors of jobs, and the requests with them.
        logger.exception("Could not run a batch of %s", task_name)
        return ExceptionInfo()


class _BatchTrace:
    """One batch: the items whose tracers are entered, and the model's outcomes."""

    def __init__(self, task: BatchTask, payload: BatchPayload, run_model: RunModel) -> None:
        self._task = task
        self._payload = payload
        self._run_model = run_model
        self._accept = prepare_accept_content(task.app.conf.accept_content)
        #: The result of each request for Celery's worker.
        self._results: list[ItemEnd] = [None] * len(payload)
        #: Of the requests whose stored values cannot be had, by index: why.
        self._unreadable: dict[int, Exception | Instead] = {}
        #: The rows of the items to run, and the model's outcomes, by the items' indexes.
        self._rows: dict[int, CallRows] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._call: ModelCall | None = None
        self._waited = 0.0
        self._can_store = True
        self._writer: BulkResultWriter | None = None
        #: Whether events or log lines show the repr of results.
        self._shows_results = payload.has_watchers or trace_logger.isEnabledFor(logging.INFO)
        #: The indexes of the items that need a tracer, and the other items.
        self._traced: list[int] = []
        self._fast_trace: FastTrace | None = None
        self._fast_items: dict[int, FastItem] = {}
        self._context = copy_context()
        self._reuse = reuse_of(task, payload.reuse)
        self._span = BatchSpan(task.name)

    def run(self) -> BatchEnd:
        end = self._run()
        if self._call is not None:
            self._call.store_answers()  # also if results could not be stored, and run again
        return end

    def _run(self) -> BatchEnd:
        count = len(self._payload)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + _FRAMES_PER_ITEM * count))
        try:
            self._unreadable = read_stored_values(self._task, self._payload)
        except StoreError as error:
            logger.warning("Could not read the stored values of %d messages: %s", count, error)
            return BatchEnd([None] * count, unanswered=Unanswered.NOT_READ)
        self._traced = [index for index in range(count) if index not in self._unreadable]
        explain_encode_errors(self._task.backend)
        encode_results_with(self._task.backend, encode_json)
        try:
            with (
                result_reprs(wanted=self._shows_results),
                buffered_results(self._task) as self._writer,
            ):
                self._fail_unreadable()
                self._find_fast_items()
                self._enter(0)
                self._store_fast_items()
        except temporary_errors(self._task.backend) as error:
            logger.warning("Could not store %d results, which are computed again: %s", count, error)
            return BatchEnd([None] * count, self._work, unanswered=Unanswered.NOT_STORED)
        except Exception as error:
            logger.exception("Could not store the results of a batch")
            self._results = [self._fail(delivery, error) for delivery in self._payload]
        return BatchEnd(
            self._results,
            work=self._work,
            safe_size=self._task._batch_runner.safe_size.largest,
            broken=broken_device(),
            unanswered=self._unanswered,
            stored=time.monotonic(),
        )

    @property
    def _unanswered(self) -> Unanswered:
        if any(outcome.again for outcome in self._outcomes.values()) and self._call is not None:
            return self._call.unanswered
        is_later = Instead.LATER in self._unreadable.values()
        return Unanswered.NOT_READ if is_later else Unanswered.INTERRUPTED

    @property
    def _work(self) -> Work:
        return self._call.work if self._call else NO_WORK

    def _fail_unreadable(self) -> None:
        for index, error in self._unreadable.items():
            if isinstance(error, Instead):
                self._results[index] = DONE if error is Instead.ENDED else None
            else:
                self._results[index] = self._fail_without_values(self._payload[index], error)

    def _fail_without_values(self, delivery: Delivery, error: Exception) -> ItemEnd:
        """Store that a request has failed, for its callbacks and its chord, too."""
        logger.error("%s[%s] has failed: %r", self._task.name, delivery.task_id, error)
        with suppress(Exception):  # whatever is wrong with its body, too
            *_, embed = delivery._replace(stored=None).decode(self._accept)
            delivery = delivery._replace(request={**delivery.request, **embed})
        return self._fail(delivery, error)

    def _find_fast_items(self) -> None:
        """Find the items that need no tracer; the last has one, for the model to run in."""
        task, writer = self._task, self._writer
        if writer is None or not writer.stores_in_bulk:
            return
        if not (FastPaths.of(task.app).is_on("trace") and can_trace_fast(task)):
            return
        self._fast_trace = FastTrace(task, writer, self._accept, shows_results=self._shows_results)
        for index in self._traced[:-1]:
            item = self._fast_trace.read(self._payload[index])
            if item is not None:
                self._fast_items[index] = item
                self._rows[index] = item.row
        self._traced = [index for index in self._traced if index not in self._fast_items]

    def _enter(self, place: int) -> None:
        """Enter the tracer of one item, and in its task's body those of the items that follow."""
        if place == len(self._traced):
            if len(self._rows) > len(self._fast_items) or not self._fast_items:
                self._call_model()
                return
            # No traced item runs: the model runs in the tracer of a fast one.
            index, _ = self._fast_items.popitem()
            del self._rows[index]
            self._traced.append(index)
        index = self._traced[place]
        has_run = False

        def answer(rows: CallRows) -> Outcome:
            nonlocal has_run
            has_run = True
            self._rows[index] = rows
            self._span.join()
            self._enter(place + 1)
            return self._outcomes[index]

        self._trace_item(index, answer)
        if not has_run:  # the tracer did not call run: a hook raised, or the task ran before
            self._enter(place + 1)

    def _store_fast_items(self) -> None:
        """Store the successes of the fast items; others go through their tracers."""
        for index, item in self._fast_items.items():
            outcome = self._outcomes[index]
            result = None
            if self._fast_trace is not None and outcome.error is None and not outcome.again:
                result = self._fast_trace.store(item, outcome.value, self._waited)
            if result is not None:
                self._results[index] = result
            else:
                self._trace_item(index, partial(_given_outcome, outcome))

    def _trace_item(self, index: int, answer: Answer) -> None:
        result = self._trace(self._payload[index], answer)
        outcome = self._outcomes.get(index)
        self._results[index] = None if outcome is not None and outcome.again else result

    def _trace(self, delivery: Delivery, answer: Answer) -> ItemEnd:
        task = self._task
        try:
            args, kwargs, embed = delivery.decode(self._accept)
        except InvalidPayload as error:
            return self._fail_without_values(delivery, error)
        except Exception as error:  # noqa: BLE001 (a malformed body, or no memory)
            return self._fail(delivery, error) if delivery.is_checked else Refused(reason_of(error))
        try:
            request = {**delivery.request, "args": args, "kwargs": kwargs, "is_eager": False}
            request.update(embed)
            pending_answer.set(delivery.task_id, answer)
            retval, info, runtime, shown = self._context.copy().run(
                trace_task, task, delivery.task_id, args, kwargs, request, app=task.app
            )
        except Reject:
            # Raised by hooks around the tracer; the worker rejects this message alone.
            return 1, ExceptionInfo(), 0.0
        except Exception as error:  # noqa: BLE001 (an error of Celery, or no memory)
            return self._fail(delivery, error)
        if runtime is not None:
            runtime = max(runtime - self._waited, 0.0)
        return (1, retval, runtime) if info else (0, shown, runtime)

    def _fail(self, delivery: Delivery, error: Exception) -> ItemEnd:
        """Store a failure that no tracer has stored; the worker stores it if that fails."""
        einfo, backend = error_info(error), self._task.backend
        if not self._can_store:
            return einfo
        try:
            backend.mark_as_failure(delivery.task_id, error, request=Context(delivery.request))
        except Exception as failure:  # noqa: BLE001 (the other items go on)
            self._can_store = not isinstance(failure, temporary_errors(backend))
            logger.warning("Could not store that %s has failed: %s", delivery.task_id, failure)
            return einfo
        return 1, einfo, 0.0

    def _call_model(self) -> None:
        if self._fast_items:
            self._rows = dict(sorted(self._rows.items()))  # in the order of the requests
        if not self._rows:
            return
        rows = list(self._rows.values())
        deliveries = [self._payload[index] for index in self._rows]
        try:
            _store_starts(self._task, deliveries, self._accept)
            if self._writer is not None:
                self._writer.announce()  # STARTED is no news once the model has answered
            expires = [delivery.request.get("expires") for delivery in deliveries]
            self._call = call = ModelCall(
                self._task,
                rows,
                self._span,
                partial(self._left_out, deliveries, Expiries(self._task.app, expires)),
                self._decode_again,
                self._payload.most,
                self._payload.cost_limits,
                is_suspect=self._payload.reason == Reason.ALONE,
            )
            self._span.describe(
                self._payload.reason,
                str(deliveries[0].request.get("hostname") or ""),
                (delivery.arrived for delivery in deliveries),
            )
            if self._reuse is not None:
                call.look_up(self._reuse)
            if call.needs_model:
                self._waited = self._run_model(call)
            outcomes = call.outcomes()
            if self._writer is not None:
                self._writer.attach(call.facts(deliveries, self._payload))
        except Exception as error:  # noqa: BLE001 (each item gets it, not the innermost alone)
            outcomes = [Outcome(error=error, origin=error.__traceback__)] * len(rows)
        finally:
            if self._call is not None:
                self._call.release()
        self._outcomes = dict(zip(self._rows, outcomes, strict=True))

    def _decode_again(self) -> list[CallRows]:
        """Return the rows of all items as they came: the model may have changed what it got."""
        return [self._decoded(self._payload[index], rows) for index, rows in self._rows.items()]

    def _decoded(self, delivery: Delivery, rows: CallRows) -> CallRows:
        task = self._task
        if delivery.content_type is None or has_own_call(task):
            return rows  # it was decoded before, or its task class may have given it others
        args, kwargs, _ = delivery.decode(self._accept)
        return task._call_rows(Context(delivery.request), args, kwargs)

    def _left_out(self, deliveries: Sequence[Delivery], expiries: Expiries) -> Collection[int]:
        """Return the indexes of those that have expired or were revoked since they were read."""
        expired, revoked = expiries.passed(), self._payload.revoked
        if not revoked:
            return expired
        return {n for n, each in enumerate(deliveries) if each.task_id in revoked}.union(expired)


def _given_outcome(outcome: Outcome, _rows: CallRows) -> Outcome:
    """Return an outcome that is known, in place of running the rows."""
    return outcome


def _store_starts(task: Any, deliveries: Iterable[Delivery], accept: Any) -> None:
    """Store STARTED of the items that ask for it, as their tracers do with ``track_started``."""
    if task.track_started:
        return
    for delivery in deliveries:
        request = delivery.request
        if not request.get(TRACK_HEADER) or ignores_result(task, request):
            continue
        try:
            args, kwargs, _ = delivery.decode(accept)
            context = Context(request, args=args, kwargs=kwargs, called_directly=False)
            meta = {"pid": os.getpid(), "hostname": context.hostname}
            task.backend.store_result(delivery.task_id, meta, states.STARTED, request=context)
        except Exception as error:  # noqa: BLE001 (the result matters more than the start)
            logger.warning("Could not store that %s has started: %s", delivery.task_id, error)
