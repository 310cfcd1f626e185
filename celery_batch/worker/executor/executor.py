"""
The way of a batch through a pool process, from top to bottom.

1. `run_batch` or, on a worker thread, `trace_batch` gets the payload of a job.  ``pipeline.py``
   has the threads of a pool process, ``thread_pipeline.py`` those of a threads pool; elsewhere
   one thread does all.  A task whose function gets a list of requests is ``request_list.py``'s.
2. What is stored beside its messages is fetched (``stored_values.py``).
3. Items that need no tracer are decoded (``fast_trace.py``); the tracers of the others are
   entered.
4. Within the innermost, a `ModelCall` finds rows whose answers are known (``row_reuse.py``),
   collates the others, is made on the thread of the models, and uncollates.
5. The tracers end, each with its item's outcome, and all results are stored in one write.
6. The main process gets a `BatchEnd` with an `ItemEnd` for each request.

An error of the model is the outcome of its items: their tracers raise and store it.  An item
without an outcome ends as None, as all do while the result backend is away: the main process
runs these again, and `BatchEnd.unanswered` says why.  Any other error is returned in place of a
`BatchEnd`, and an exit ends the process; the main process decides what follows.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from celery_batch.compat.celery import encode_results_with, escape_results_with, result_reprs
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.errors import InvalidPayload
from celery_batch.items.pending_answer import Answer, pending_answer
from celery_batch.items.rows import CallRows
from celery_batch.protocol import TRACK_HEADER
from celery_batch.runtime import registry
from celery_batch.runtime.runner import Outcome
from celery_batch.serialization.encode_errors import explain_encode_errors
from celery_batch.serialization.typed_json import encode_json, escape_dicts
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
    ignores_result,
)
from celery_batch.worker.executor.model_call import ModelCall, broken_device
from celery_batch.worker.executor.request_list import run_requests
from celery_batch.worker.executor.stored_values import Instead, read_stored_values
from celery_batch.worker.executor.time_limit import SoftLimit
from celery_batch.worker.intake.refusals import reason_of
from celery_batch.worker.redis.result_backend import (
    BulkResultWriter,
    storing_results,
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


class _Item:
    """One request of a batch, and what is known of it."""

    __slots__ = ("delivery", "end", "fast", "outcome", "rows")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        #: As long as it needs no tracer.
        self.fast: FastItem | None = None
        #: The rows for the model, and its outcome, once they are known.
        self.rows: CallRows | None = None
        self.outcome: Outcome | None = None
        #: What Celery's worker gets.
        self.end: ItemEnd = None


class _BatchTrace:
    """One batch: the items whose tracers are entered, and the call of the model."""

    def __init__(self, task: BatchTask, payload: BatchPayload, run_model: RunModel) -> None:
        self._task = task
        self._payload = payload
        self._run_model = run_model
        self._accept = prepare_accept_content(task.app.conf.accept_content)
        self._items: list[_Item] = []
        #: What it means that an item has no outcome.
        self._unanswered = Unanswered.INTERRUPTED
        self._call: ModelCall | None = None
        self._waited = 0.0
        self._can_store = True
        self._writer: BulkResultWriter | None = None
        #: Whether events or log lines show the repr of results.
        self._shows_results = payload.has_watchers or trace_logger.isEnabledFor(logging.INFO)
        self._context = copy_context()
        self._span = BatchSpan(task.name)

    def run(self) -> BatchEnd:
        end = self._run()
        if self._call is not None:
            self._call.store_answers()  # also if results could not be stored, and run again
        return end

    def _run(self) -> BatchEnd:
        count = len(self._payload)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + _FRAMES_PER_ITEM * count))
        unreadable = read_stored_values(self._task, self._payload)
        self._items = [_Item(delivery) for delivery in self._payload]
        explain_encode_errors(self._task.backend)
        encode_results_with(self._task.backend, encode_json)
        escape_results_with(self._task.backend, escape_dicts)
        try:
            with (
                result_reprs(wanted=self._shows_results),
                storing_results(self._task) as self._writer,
            ):
                self._fail_unreadable(unreadable)
                items = [each for n, each in enumerate(self._items) if n not in unreadable]
                fast_trace = self._find_fast_items(items[:-1])  # the model runs in a tracer
                self._enter(self._traced(items))
                self._store_fast_items(fast_trace)
        except temporary_errors(self._task.backend) as error:
            logger.warning("Could not store %d results, which are computed again: %s", count, error)
            return BatchEnd([None] * count, self._work, unanswered=Unanswered.NOT_STORED)
        except Exception as error:
            logger.exception("Could not store the results of a batch")
            for item in self._items:
                item.end = self._fail(item.delivery, error)
        return BatchEnd(
            [item.end for item in self._items],
            work=self._work,
            safe_size=self._task._batch_runner.safe_size.largest,
            broken=broken_device(),
            unanswered=self._unanswered,
            stored=time.monotonic(),
        )

    @property
    def _work(self) -> Work:
        return self._call.work if self._call else NO_WORK

    def _fail_unreadable(self, unreadable: dict[int, Exception | Instead]) -> None:
        """End the requests whose stored values cannot be had, by index with the reason."""
        if Instead.LATER in unreadable.values():
            self._unanswered = Unanswered.NOT_READ
        for index, error in unreadable.items():
            item = self._items[index]
            if not isinstance(error, Instead):
                item.end = self._fail_without_values(item.delivery, error)
            elif error is Instead.ENDED:
                item.end = DONE

    def _fail_without_values(self, delivery: Delivery, error: Exception) -> ItemEnd:
        """Store that a request has failed, for its callbacks and its chord, too."""
        logger.error("%s[%s] has failed: %r", self._task.name, delivery.task_id, error)
        with suppress(Exception):  # whatever is wrong with its body, too
            *_, embed = delivery._replace(stored=None).decode(self._accept)
            delivery = delivery._replace(request={**delivery.request, **embed})
        return self._fail(delivery, error)

    def _find_fast_items(self, items: Sequence[_Item]) -> FastTrace | None:
        """Find the items that need no tracer; return what stores their results."""
        task, writer = self._task, self._writer
        is_on = writer is not None and FastPaths.of(task.app).is_on("trace")
        if writer is None or not (is_on and can_trace_fast(task)):
            return None
        fast_trace = FastTrace(task, writer, self._accept, shows_results=self._shows_results)
        for item in items:
            item.fast = fast = fast_trace.read(item.delivery)
            if fast is not None:
                item.rows = fast.row
        return fast_trace

    @staticmethod
    def _traced(items: Sequence[_Item]) -> Iterator[_Item]:
        """Yield the items that need a tracer, and fast ones while the model would run in none."""
        yield from [item for item in items if item.fast is None]
        fast = [item for item in items if item.fast is not None]
        while fast and not any(item.fast is None and item.rows is not None for item in items):
            item = fast.pop()
            item.fast = item.rows = None
            yield item

    def _enter(self, items: Iterator[_Item]) -> None:
        """Enter the tracers of items, one within the other, and call the model in the innermost."""
        for item in items:
            self._trace_item(item, partial(self._answer, item, items))
            if item.rows is not None:  # the others were entered within its tracer
                return
        self._call_model()

    def _answer(self, item: _Item, others: Iterator[_Item], rows: CallRows) -> Outcome:
        """Return the outcome of an item whose tracer runs its task: within, the others' do."""
        item.rows = rows
        self._span.join()
        self._enter(others)
        if item.outcome is not None and item.outcome.error is not None:
            self._restore_arguments(item.delivery)
        return item.outcome  # type: ignore[return-value] # the model has been called

    def _restore_arguments(self, delivery: Delivery) -> None:
        """Let a retry send what came: the model may have changed what it got."""
        if delivery.content_type is not None:  # else it was decoded before
            args, kwargs, _ = delivery.decode(self._accept)
            self._task.request.update(args=args, kwargs=kwargs)

    def _store_fast_items(self, fast_trace: FastTrace | None) -> None:
        """Store the successes of the fast items; others go through their tracers."""
        for item in self._items:
            fast, outcome = item.fast, item.outcome
            if fast_trace is None or fast is None or outcome is None:
                continue
            if outcome.error is None and not outcome.again:
                item.end = fast_trace.store(fast, outcome.value, self._waited)
            if item.end is None:
                self._trace_item(item, partial(_given_outcome, outcome))

    def _trace_item(self, item: _Item, answer: Answer) -> None:
        end = self._trace(item.delivery, answer)
        runs_again = item.outcome is not None and item.outcome.again
        item.end = None if runs_again else end

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
        items = [item for item in self._items if item.rows is not None]
        if not items:
            return
        rows = [item.rows for item in items if item.rows is not None]
        deliveries = [item.delivery for item in items]
        try:
            _store_starts(self._task, deliveries, self._accept)
            if self._writer is not None:
                self._writer.announce()  # STARTED is no news once the model has answered
            self._span.describe(
                self._payload.reason,
                str(deliveries[0].request.get("hostname") or ""),
                (delivery.arrived for delivery in deliveries),
            )
            self._call = call = ModelCall(
                self._task, self._payload, deliveries, rows, self._span, self._accept
            )
            if call.needs_model:
                self._waited = self._run_model(call)
            outcomes = call.outcomes()
            if any(outcome.again for outcome in outcomes):
                self._unanswered = call.unanswered
            if self._writer is not None:
                self._writer.attach(call.facts())
        except Exception as error:  # noqa: BLE001 (each item gets it, not the innermost alone)
            outcomes = [Outcome(error=error, origin=error.__traceback__)] * len(rows)
        finally:
            if self._call is not None:
                self._call.release()
        for item, outcome in zip(items, outcomes, strict=True):
            item.outcome = outcome


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
