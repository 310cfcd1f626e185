"""

Runs a batch in the pool process, and traces each item as its own task.

Each item goes through Celery's own tracer, so its state, result, signals,
retries and callbacks are Celery's.  The tracers are nested: every item's tracer
is entered, the model runs once in the innermost place, and the tracers unwind.
So ``task_prerun`` and STARTED come before the model, ``task_postrun`` after it,
and each runtime covers the model call.

Each tracer has context variables of its own, as if it ran alone: what tracing and
error reporting keep there for one item (OpenTelemetry's current span, Sentry's
scope) would otherwise be taken for the next one's parent.  The model runs in those
of the last item, so that a task class whose ``__call__`` sets something up finds it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import current_app
from celery.app.task import Context
from celery.app.trace import trace_task
from celery.exceptions import Reject
from kombu.serialization import prepare_accept_content

from celery_batch.encoding import explain_encode_errors
from celery_batch.pending_answer import Answer, pending_answer
from celery_batch.rows import CallRows
from celery_batch.runtime import registry
from celery_batch.runtime.runner import Outcome
from celery_batch.task import BatchTask
from celery_batch.telemetry.otel import BatchSpan
from celery_batch.telemetry.report import NO_WORK
from celery_batch.worker.dispatch.outcome import BatchEnd, FollowUp, Refused, Settled, error_info
from celery_batch.worker.dispatch.payload import Delivery
from celery_batch.worker.executor.fast_trace import FastTrace, PlainItem, is_plain
from celery_batch.worker.executor.model_call import ModelCall, facts_of, out_of_use
from celery_batch.worker.executor.result_repr import is_shown, showing_results
from celery_batch.worker.executor.started import store_starts
from celery_batch.worker.executor.time_limit import SoftLimit
from celery_batch.worker.intake.expiry import Expiries
from celery_batch.worker.intake.refusals import reason_of
from celery_batch.worker.redis.result_backend import buffered_results, explain_results
from celery_batch.worker.redis.result_store import ResultBuffer, passing_errors

__all__ = ["Perform", "run_batch", "run_lone_batch", "settle"]

logger = logging.getLogger(__name__)

#: Stack frames one item may need: tracer, autoretry, instrumentation and our own.
_FRAMES_PER_ITEM = 16

#: Has a model called, and returns the seconds it had to wait.
Perform = Callable[[ModelCall], float]


def run_batch(
    task_name: str,
    deliveries: list[Delivery],
    soft_limit: float | None = None,  # noqa: ARG001 (where signals are for one batch, see clerks)
    limit: SoftLimit | None = None,
) -> BatchEnd | ExceptionInfo:
    """
    Run one batch in this process, from beginning to end.

    Args:
        task_name: Of a batch task that this process has registered.
        deliveries: The batch's requests, oldest first.
        soft_limit: Seconds; the pool says when they are over.
        limit: What that does, where somebody knows for which batch it says so.

    Returns:
        What became of each request, or the error that kept us from finding out.
    """
    with limit or SoftLimit() as aimed:

        def perform(call: ModelCall) -> float:
            call(aimed)
            return 0.0

        return settle(task_name, deliveries, perform)


def run_lone_batch(*arguments: Any) -> BatchEnd | ExceptionInfo:
    """Run a batch behind which nobody waits; as `run_batch`, whose arguments it takes."""
    return run_batch(*arguments)


def settle(
    task_name: str, deliveries: list[Delivery], perform: Perform
) -> BatchEnd | ExceptionInfo:
    """
    Take a batch through its tracers.

    Args:
        task_name: Of a batch task that this process has registered.
        deliveries: The batch's requests, oldest first.
        perform: Has the model called.

    Returns:
        What became of each request, or the error that kept us from finding out.
    """
    broken = out_of_use()
    if broken is not None:
        return BatchEnd([None] * len(deliveries), broken=broken, follow_up=FollowUp.REFUSED)
    app = current_app._get_current_object()  # noqa: SLF001 (Celery's own way to leave the proxy)
    try:
        registry.prepare()
        return _Run(app.tasks[task_name], deliveries, perform).settle_all()
    except Exception:
        # Two of Celery's pools drop what a job raises, and with it everybody in it.
        logger.exception("Could not settle a batch of %s", task_name)
        return ExceptionInfo()


class _Run:
    """A batch in the making: who has entered, what the model said."""

    def __init__(self, task: BatchTask, deliveries: list[Delivery], perform: Perform) -> None:
        self._task = task
        self._deliveries = deliveries
        self._perform = perform
        self._accept = prepare_accept_content(task.app.conf.accept_content)
        self._settled: list[Settled | ExceptionInfo | Refused | None] = [None] * len(deliveries)
        self._asked: dict[int, CallRows] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._call: ModelCall | None = None
        self._waited = 0.0
        self._can_store = True
        self._buffer: ResultBuffer | None = None
        self._shows = is_shown(by_events=getattr(deliveries, "has_watchers", True))
        #: Who goes through a tracer, and who takes the short way, as it was admitted.
        self._traced = list(range(len(deliveries)))
        self._way: FastTrace | None = None
        self._plain: dict[int, PlainItem] = {}
        self._context = copy_context()
        self._span = BatchSpan(task.name)

    def settle_all(self) -> BatchEnd:
        needed = 1000 + _FRAMES_PER_ITEM * len(self._deliveries)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed))
        explain_encode_errors(self._task.backend)
        try:
            with (
                showing_results(self._shows),
                buffered_results(self._task) as self._buffer,
            ):
                self._admit_plain()
                self._enter(0)
                self._settle_plain()
        except passing_errors(self._task.backend) as error:
            count = len(self._deliveries)
            logger.warning("Could not store %d results, which are computed again: %s", count, error)
            work = self._call.work if self._call else NO_WORK
            return BatchEnd([None] * count, work, follow_up=FollowUp.NOT_STORED)
        except Exception as error:
            logger.exception("Could not store the results of a batch")
            self._settled = [self._fail(delivery, error) for delivery in self._deliveries]
        return BatchEnd(
            self._settled,
            work=self._call.work if self._call else NO_WORK,
            safe_size=self._task._batch_runner.safe_size.largest,
            broken=out_of_use(),
            follow_up=self._call.follow_up if self._call else FollowUp.BROKE_OFF,
        )

    def _admit_plain(self) -> None:
        """Find out who needs no tracer, but for the last, in whose name the model runs."""
        if self._buffer is None or not is_plain(self._task):
            return
        self._way = FastTrace(self._task, self._buffer, self._accept, shows=self._shows)
        for index, delivery in enumerate(self._deliveries[:-1]):
            item = self._way.admit(delivery)
            if item is not None:
                self._plain[index] = item
                self._asked[index] = item.row
        self._traced = [index for index in self._traced if index not in self._plain]

    def _enter(self, place: int) -> None:
        """Enter the tracer of one item, and through it those of all that follow."""
        if place == len(self._traced):
            if len(self._asked) > len(self._plain) or not self._plain:
                self._run_model()
                return
            # Nobody went on whose tracer was entered: somebody else has to lend his name.
            lender, _ = self._plain.popitem()
            del self._asked[lender]
            self._traced.append(lender)
        index = self._traced[place]
        went_on = [False]

        def answer(asked: CallRows) -> Outcome:
            self._asked[index] = asked
            self._span.join()
            went_on[0] = True
            self._enter(place + 1)
            return self._outcomes[index]

        self._settle(index, answer)
        if not went_on[0]:  # its tracer never called run: a hook raised, or it ran before
            self._enter(place + 1)

    def _settle_plain(self) -> None:
        """Settle who has gone the short way; who has no value there goes through the tracer."""
        for index, item in self._plain.items():
            outcome = self._outcomes[index]
            settled = None
            if self._way is not None and outcome.error is None and not outcome.again:
                settled = self._way.settle(item, outcome.value, self._waited)
            if settled is not None:
                self._settled[index] = settled
            else:
                self._settle(index, partial(_say, outcome))

    def _settle(self, index: int, answer: Answer) -> None:
        settled = self._trace(self._deliveries[index], answer)
        outcome = self._outcomes.get(index)
        self._settled[index] = None if outcome is not None and outcome.again else settled

    def _trace(self, delivery: Delivery, answer: Answer) -> Settled | ExceptionInfo | Refused:
        task = self._task
        try:
            args, kwargs, embed = delivery.decode(self._accept)
        except Exception as error:  # noqa: BLE001 (a body that cannot be read, memory that ran out)
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
        except Exception as error:  # noqa: BLE001 (Celery's own, memory that ran out)
            return self._fail(delivery, error)
        if runtime is not None:
            runtime = max(runtime - self._waited, 0.0)
        return (1, retval, runtime) if info else (0, shown, runtime)

    def _fail(self, delivery: Delivery, error: Exception) -> Settled | ExceptionInfo:
        """Settle what no tracer has told the caller of, or leave that to the worker."""
        einfo, backend = error_info(error), self._task.backend
        if not self._can_store:
            return einfo
        try:
            backend.mark_as_failure(delivery.task_id, error, request=Context(delivery.request))
        except Exception as failure:  # noqa: BLE001 (its own, and not its neighbours')
            self._can_store = not isinstance(failure, passing_errors(backend))
            logger.warning("Could not store that %s has failed: %s", delivery.task_id, failure)
            return einfo
        return 1, einfo, 0.0

    def _run_model(self) -> None:
        if self._plain:
            self._asked = dict(sorted(self._asked.items()))  # as they came
        asked = list(self._asked.values())
        if not asked:
            return
        called = [self._deliveries[index] for index in self._asked]
        try:
            store_starts(self._task, called, self._accept)
            if self._buffer is not None:
                self._buffer.announce()  # STARTED is no news once the model has answered
            expires = [delivery.request.get("expires") for delivery in called]
            expiries = Expiries(self._task.app, expires)
            self._call = ModelCall(self._task, asked, self._span, expiries)
            self._call.most = getattr(self._deliveries, "most", None)
            self._describe(called)
            self._waited = self._perform(self._call)
            outcomes = self._call.outcomes()
            self._explain(self._call, asked, called)
        except Exception as error:  # noqa: BLE001 (every item has to hear of it, not the innermost alone)
            outcomes = [Outcome(error=error, origin=error.__traceback__)] * len(asked)
        self._outcomes = dict(zip(self._asked, outcomes, strict=True))

    def _describe(self, called: Sequence[Delivery]) -> None:
        if not self._span.is_on:
            return
        self._span.describe(
            getattr(self._deliveries, "reason", ""),
            str(called[0].request.get("hostname") or ""),
            [each.arrived for each in called if each.arrived is not None],
        )

    def _explain(
        self, call: ModelCall, asked: Sequence[CallRows], called: Sequence[Delivery]
    ) -> None:
        ran = [place for place in range(len(asked)) if place not in call.left_out]
        facts = facts_of(
            call.timings, [asked[place] for place in ran], [called[place] for place in ran]
        )
        explain_results(self._task, facts)


def _say(outcome: Outcome, _asked: CallRows) -> Outcome:
    return outcome
