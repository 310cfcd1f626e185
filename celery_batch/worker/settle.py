"""
The pool's side of a batch: run it, and settle each item as its own task.

Each item goes through Celery's own tracer, so its state, result, signals,
retries and callbacks are Celery's.  The tracers are nested: every item's tracer
is entered, the model runs once in the innermost place, and the tracers unwind.
So ``task_prerun`` and STARTED come before the model, ``task_postrun`` after it,
and each runtime covers the model call.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import current_app
from celery.app.task import Context
from celery.app.trace import trace_task
from celery.exceptions import Reject
from kombu.serialization import loads, prepare_accept_content

from celery_batch.seat import Answer, seat
from celery_batch.serving.runner import Outcome
from celery_batch.task import BatchTask
from celery_batch.worker.redis_results import ResultBuffer, buffered_results
from celery_batch.worker.softlimit import SoftLimit

__all__ = ["Delivery", "Settled", "run_batch"]

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


def run_batch(task_name: str, deliveries: list[Delivery]) -> list[Settled]:
    """
    Run one batch in this process.

    Args:
        task_name: Of a batch task that this process has registered.
        deliveries: The batch's requests, oldest first.

    Returns:
        For each request what Celery's tracer made of it, in order.
    """
    app = current_app._get_current_object()  # noqa: SLF001 (Celery's own way to leave the proxy)
    return _Run(app.tasks[task_name], deliveries).settle_all()


class _Run:
    """A batch in the making: who has entered, what the model said."""

    def __init__(self, task: BatchTask, deliveries: list[Delivery]) -> None:
        self._task = task
        self._deliveries = deliveries
        self._accept = prepare_accept_content(task.app.conf.accept_content)
        self._settled: list[Settled | None] = [None] * len(deliveries)
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._buffer: ResultBuffer | None = None
        self._soft_limit = SoftLimit()

    def settle_all(self) -> list[Settled]:
        needed = 1000 + _FRAMES_PER_ITEM * len(self._deliveries)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed))
        with self._soft_limit, buffered_results(self._task) as self._buffer:
            self._enter(0)
        return [settled for settled in self._settled if settled is not None]

    def _enter(self, index: int) -> None:
        """Enter the tracer of one item, and through it those of all that follow."""
        if index == len(self._deliveries):
            self._run_model()
            return
        went_on = [False]

        def answer(row: tuple[Any, ...]) -> Outcome:
            self._rows[index] = row
            went_on[0] = True
            self._enter(index + 1)
            return self._outcomes[index]

        self._settled[index] = self._trace(self._deliveries[index], answer)
        if not went_on[0]:  # its tracer never called run: a hook raised, or it ran before
            self._enter(index + 1)

    def _trace(self, delivery: Delivery, answer: Answer) -> Settled:
        task = self._task
        try:
            args, kwargs, embed = delivery.decode(self._accept)
            request = {**delivery.request, "args": args, "kwargs": kwargs, "is_eager": False}
            request.update(embed)
            seat.take(delivery.task_id, answer)
            retval, info, runtime, shown = trace_task(
                task, delivery.task_id, args, kwargs, request, app=task.app
            )
        except Reject:
            # Raised by hooks around the tracer; the worker rejects this message alone.
            return 1, ExceptionInfo(), 0.0
        except Exception as error:  # noqa: BLE001 (a body that cannot be read, memory that ran out)
            # No tracer has told the caller, who would wait for ever.
            task.backend.mark_as_failure(delivery.task_id, error, request=Context(delivery.request))
            return 1, ExceptionInfo(), 0.0
        return (1, retval, runtime) if info else (0, shown, runtime)

    def _run_model(self) -> None:
        if not self._rows:
            return
        try:
            if self._buffer is not None:
                self._buffer.flush()  # STARTED is no news once the model has answered
            with self._soft_limit.in_model(), seat.running_batch():
                outcomes = self._task.runner().run(*_columns(list(self._rows.values())))
        except Exception as error:  # noqa: BLE001 (every item has to hear of it, not the innermost alone)
            outcomes = [Outcome(error=error, origin=error.__traceback__)] * len(self._rows)
        self._outcomes = dict(zip(self._rows, outcomes, strict=True))


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
