"""
The pool's side of a batch: run it, and settle each item as its own task.

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
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery import current_app
from celery.app.task import Context
from celery.app.trace import trace_task
from celery.exceptions import Reject
from kombu.serialization import loads, prepare_accept_content

from celery_batch.folding import Asked, answer_all, rows_in
from celery_batch.seat import Answer, seat
from celery_batch.serving.runner import Outcome
from celery_batch.task import BatchTask
from celery_batch.telemetry.otel import BatchSpan
from celery_batch.worker.redis_results import ResultBuffer, buffered_results, passing_errors
from celery_batch.worker.softlimit import SoftLimit

__all__ = ["BatchEnd", "Delivery", "Fate", "Settled", "error_info", "run_batch"]

logger = logging.getLogger(__name__)

#: Stack frames one item may need: tracer, autoretry, instrumentation and our own.
_FRAMES_PER_ITEM = 16

#: What Celery's request handler expects of a finished task: failed, result or error, runtime.
Settled = tuple[int, Any, float]


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    One request on its way to the pool process, its body still encoded.

    Args:
        task_id: The request's id.
        request: Celery's request dict without arguments.
        body: The message's body; already decoded if `content_type` is None.
        content_type: Of the body.
        content_encoding: Of the body.
    """

    task_id: str
    request: dict[str, Any]
    body: Any
    content_type: str | None
    content_encoding: str | None

    def decode(self, accept: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return arguments, keyword arguments and what Celery embeds beside them."""
        if self.content_type is None:
            args, kwargs, embed = self.body
        else:
            args, kwargs, embed = loads(
                self.body, self.content_type, self.content_encoding, accept=accept
            )
        return args, kwargs, embed or {}


class Fate(Enum):
    """What kept requests from having an answer."""

    BROKE_OFF = auto()  # the run ended early, and one of them may be to blame
    NOT_STORED = auto()  # they ran, and their results could not be stored
    REFUSED = auto()  # the process was of no use, and ran nothing


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """
    What a pool process says of a batch.

    Args:
        settled: For each request what Celery's tracer made of it, in order; None for
            one that has no answer and is to run again.
        calls: How often the model was called.
        safe_size: Most items that fit into memory; None if nothing ran out of it.
        broken: Why this process is of no more use, if it is.
        fate: What kept those that have no answer from it.
    """

    settled: list[Settled | None]
    calls: int = 1
    safe_size: int | None = None
    broken: str | None = None
    fate: Fate = Fate.BROKE_OFF


#: Why this process is of no more use: its device fails whatever it is asked.
_broken: str | None = None


def error_info(error: Exception) -> ExceptionInfo:
    """Wrap an error as the pool would."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


def run_batch(task_name: str, deliveries: list[Delivery]) -> BatchEnd | ExceptionInfo:
    """
    Run one batch in this process.

    Args:
        task_name: Of a batch task that this process has registered.
        deliveries: The batch's requests, oldest first.

    Returns:
        What became of each request, or the error that kept us from finding out.
    """
    global _broken  # noqa: PLW0603 (one device a process)
    if _broken is not None:
        return BatchEnd([None] * len(deliveries), calls=0, broken=_broken, fate=Fate.REFUSED)
    app = current_app._get_current_object()  # noqa: SLF001 (Celery's own way to leave the proxy)
    try:
        end = _Run(app.tasks[task_name], deliveries).settle_all()
    except Exception:
        # Two of Celery's pools drop what a job raises, and with it everybody in it.
        logger.exception("Could not settle a batch of %s", task_name)
        return ExceptionInfo()
    _broken = end.broken
    return end


class _Run:
    """A batch in the making: who has entered, what the model said."""

    def __init__(self, task: BatchTask, deliveries: list[Delivery]) -> None:
        self._task = task
        self._deliveries = deliveries
        self._accept = prepare_accept_content(task.app.conf.accept_content)
        self._settled: list[Settled | None] = [None] * len(deliveries)
        self._asked: dict[int, Asked] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._buffer: ResultBuffer | None = None
        self._soft_limit = SoftLimit()
        self._context = copy_context()
        self._span = BatchSpan(task.name)

    def settle_all(self) -> BatchEnd:
        needed = 1000 + _FRAMES_PER_ITEM * len(self._deliveries)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed))
        runner = self._task.runner()
        before = runner.calls
        try:
            with self._soft_limit, buffered_results(self._task) as self._buffer:
                self._enter(0)
        except passing_errors(self._task.backend) as error:
            count = len(self._deliveries)
            logger.warning("Could not store %d results, which are computed again: %s", count, error)
            return BatchEnd([None] * count, fate=Fate.NOT_STORED)
        except Exception as error:
            logger.exception("Could not store the results of a batch")
            self._settled = [self._fail(delivery, error) for delivery in self._deliveries]
        return BatchEnd(
            self._settled,
            calls=runner.calls - before,
            safe_size=runner.safe_size.largest,
            broken=runner.broken,
        )

    def _enter(self, index: int) -> None:
        """Enter the tracer of one item, and through it those of all that follow."""
        if index == len(self._deliveries):
            self._run_model()
            return
        went_on = [False]

        def answer(asked: Asked) -> Outcome:
            self._asked[index] = asked
            self._span.join()
            went_on[0] = True
            self._enter(index + 1)
            return self._outcomes[index]

        settled = self._trace(self._deliveries[index], answer)
        outcome = self._outcomes.get(index)
        self._settled[index] = None if outcome is not None and outcome.again else settled
        if not went_on[0]:  # its tracer never called run: a hook raised, or it ran before
            self._enter(index + 1)

    def _trace(self, delivery: Delivery, answer: Answer) -> Settled:
        task = self._task
        try:
            args, kwargs, embed = delivery.decode(self._accept)
            request = {**delivery.request, "args": args, "kwargs": kwargs, "is_eager": False}
            request.update(embed)
            seat.take(delivery.task_id, answer)
            retval, info, runtime, shown = self._context.copy().run(
                trace_task, task, delivery.task_id, args, kwargs, request, app=task.app
            )
        except Reject:
            # Raised by hooks around the tracer; the worker rejects this message alone.
            return 1, ExceptionInfo(), 0.0
        except Exception as error:  # noqa: BLE001 (a body that cannot be read, memory that ran out)
            return self._fail(delivery, error)
        return (1, retval, runtime) if info else (0, shown, runtime)

    def _fail(self, delivery: Delivery, error: Exception) -> Settled:
        """Settle what no tracer has told the caller of, who would wait for ever."""
        request = Context(delivery.request)
        self._task.backend.mark_as_failure(delivery.task_id, error, request=request)
        return 1, error_info(error), 0.0

    def _run_model(self) -> None:
        asked = list(self._asked.values())
        if not asked:
            return
        try:
            if self._buffer is not None:
                self._buffer.announce()  # STARTED is no news once the model has answered
            with (
                self._span.around_model(rows_in(asked)),
                self._soft_limit.in_model(),
                seat.running_batch(),
            ):
                outcomes = answer_all(self._task, asked)
        except SoftTimeLimitExceeded as error:  # it struck before the model was called
            again = self._task.acks_late and len(asked) > 1
            outcomes = [Outcome(again=True) if again else Outcome(error=error)] * len(asked)
        except Exception as error:  # noqa: BLE001 (every item has to hear of it, not the innermost alone)
            outcomes = [Outcome(error=error, origin=error.__traceback__)] * len(asked)
        self._outcomes = dict(zip(self._asked, outcomes, strict=True))
