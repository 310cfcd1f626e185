"""The model call of a batch, and the facts about it that results carry."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.app.task import Context

from celery_batch.batching.batch import Reason
from celery_batch.config import steps_of
from celery_batch.items.pending_answer import pending_answer
from celery_batch.items.rows import (
    CallRows,
    Chunk,
    columns_of,
    count_rows,
    outcomes_of,
    require_key,
)
from celery_batch.items.shapes import prepare_shapes
from celery_batch.protocol import about_batch, batch_facts
from celery_batch.runtime import registry
from celery_batch.runtime.runner import BatchRun, Outcome, Timing
from celery_batch.serialization.row_digest import RowDigest
from celery_batch.task import BatchTask
from celery_batch.telemetry.otel import BatchSpan
from celery_batch.telemetry.report import NO_REUSE, Work
from celery_batch.worker.dispatch.follow_up import Unanswered
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.fast_trace import has_own_call
from celery_batch.worker.executor.row_reuse import ReusedRows, reuse_of
from celery_batch.worker.executor.time_limit import SoftLimit
from celery_batch.worker.intake.expiry import Expiries
from celery_batch.worker.redis.result_backend import Facts

__all__ = [
    "ModelCall",
    "broken_device",
    "facts_of",
]

#: Why this process can run no more batches: its device fails each call.
_broken: str | None = None


def broken_device() -> str | None:
    """Return why this process can run no more batches; None if it can."""
    return _broken


class ModelCall:
    """A batch that is ready for its model, which `__call__` alone calls, and so one thread."""

    def __init__(
        self,
        task: BatchTask,
        payload: BatchPayload,
        deliveries: Sequence[Delivery],
        calls: Sequence[CallRows],
        span: BatchSpan,
        accept: Collection[str],
    ) -> None:
        self.task = task
        self._payload = payload
        #: The requests that run, and the rows of each.
        self._deliveries, self._calls = deliveries, calls
        self._columns = columns_of(calls)
        self._expiries = Expiries(task.app, [each.request.get("expires") for each in deliveries])
        self._span = span
        #: The content types that may be decoded.
        self._accept = accept
        #: Whether requests may be left without an outcome, to run again alone; a suspect does so.
        self._may_run_again = task.acks_late and payload.reason != Reason.ALONE
        #: The indexes of requests that had expired, or were revoked, when the model was called.
        self._left_out: Collection[int] = ()
        #: The run of the rows, once it is prepared or begins, and whether what it has computed is
        #: uncollated by `outcomes`.
        self._run: BatchRun | None = None
        self._uncollates_later = False
        #: The outcome of all requests, where it is the same.
        self._common_outcome: Outcome | None = None
        #: Why requests have no outcome, where they have none.
        self.unanswered = Unanswered.INTERRUPTED
        #: The model's instance, which may be another one for the next batch.
        self._instances = registry.BatchInstances()
        #: For how many seconds rows were collated before the model was called.
        self._collating = 0.0
        #: What is known of the rows before they run; None for a task that reuses no answers.
        self._reused: ReusedRows | None = None
        reuse = reuse_of(task, payload.reuse)
        if reuse is not None:
            self._reused = reuse.look_up(self._columns)
            self._columns = self._reused.columns(self._columns)

    def store_answers(self) -> None:
        """Cache the answers that were missing, if that is wanted."""
        if self._reused is not None and self._common_outcome is None:
            self._reused.store(self._own_answers())

    def _own_answers(self) -> list[Any]:
        """Return the outputs, without those of rows for whose key the function got an equal one."""
        names, outputs = self.task._key_names, self._outputs
        if not names or self._run is None:
            return outputs
        rows = zip(self.task._batch_signature.parameters, self._columns, strict=True)
        keys = zip(*[column for name, column in rows if name in names], strict=True)
        own = [RowDigest().of(key) for key in keys]
        got = {n: own[timing.part[0]] for timing in self._run.timings for n in timing.part}
        return [
            output if got.get(n) == own[n] else Outcome(again=True)
            for n, output in enumerate(outputs)
        ]

    @property
    def needs_model(self) -> bool:
        """Whether the answer of any row is unknown."""
        return bool(self._columns[0])

    @property
    def work(self) -> Work:
        """A summary of all calls; computed beside the next batch, not before it."""
        run = self._run
        reuse = NO_REUSE if self._reused is None else self._reused.counts
        if run is None or not run.timings:
            return Work(reuse=reuse)
        timings, counted, last = run.timings, run.counts, run.timings[-1]
        return Work(
            counted.calls,
            timings[0].began,
            last.began + last.seconds,
            sum(timing.seconds for timing in timings),
            counted.isolated,
            counted.out_of_memory,
            counted.cost,
            counted.padded_cost,
            reuse,
            counted.padding_rows,
            sum(len(timing.part) for timing in timings),
            self._collating,
            counted.split,
        )

    def prepare(self) -> None:
        """Collate the rows on this thread, and have `outcomes` uncollate the outputs on its own."""
        if not self.task._batch_runner.has_stages:
            return
        began = time.monotonic()
        with self._instances.in_use(), pending_answer.running_batch():
            self._run = self._begin()
            self._run.collate()
        self._collating = time.monotonic() - began
        self._uncollates_later = self._may_run_again  # as what cannot be uncollated has to

    def release(self) -> None:
        """Let the model be unloaded: the batch has its outcomes, or none."""
        self._instances.release()

    def __call__(self, limit: SoftLimit) -> None:
        """Run the model; its errors are outcomes, see `outcomes`."""
        if _broken is not None:  # since this batch was prepared
            self.unanswered, self._common_outcome = Unanswered.NOT_STARTED, Outcome(again=True)
            return
        self._left_out = self._find_left_out()  # since it waited behind another batch
        if self._left_out:
            self._leave_out()
        if self._calls and self.needs_model:
            self._call_model(limit)

    def _find_left_out(self) -> Collection[int]:
        """Return the indexes of those that have expired or were revoked since they were read."""
        expired, revoked = self._expiries.passed(), self._payload.revoked
        if not revoked:
            return expired
        found = {n for n, each in enumerate(self._deliveries) if each.task_id in revoked}
        return found.union(expired)

    def _leave_out(self) -> None:
        self._run = None
        calls = self._calls
        kept = [n for n in range(len(calls)) if n not in self._left_out]
        self._deliveries = [self._deliveries[n] for n in kept]
        self._calls = [calls[n] for n in kept]
        self._columns = columns_of(self._calls)
        if self._reused is not None:
            self._reused = self._reused.without(calls, self._left_out)
            self._columns = self._reused.columns(self._columns)

    def outcomes(self) -> Sequence[Outcome]:
        """Return the outcome of each request; computed beside the next batch, not before it."""
        if self._uncollates_later and self._run is not None and self._common_outcome is None:
            self._uncollate(self._run)
        if self._common_outcome is not None:
            found = [self._common_outcome] * len(self._calls)
        else:
            outputs = self._outputs
            if self._reused is not None:
                outputs = self._reused.outputs(outputs)
            found = outcomes_of(self.task, self._calls, outputs)
        left_out = self._left_out
        if not left_out:
            return found
        rest, count = iter(found), len(found) + len(left_out)
        return [Outcome(again=True) if n in left_out else next(rest) for n in range(count)]

    def facts(self) -> dict[str, Facts]:
        """Return facts about the requests that have run, by their ids; see `facts_of`."""
        about = about_batch(self._payload.reason, self._padding, self._payload.plan)
        timings = () if self._run is None else self._run.timings
        return facts_of(timings, self._calls, self._deliveries, self._reused, about)

    @property
    def _outputs(self) -> list[Any]:
        return [] if self._run is None else self._run.outputs

    @property
    def _padding(self) -> float | None:
        """The part of what the calls have computed that was padding; None if that is unknown."""
        if self._run is None:
            return None
        counted = self._run.counts
        if counted.padded_cost:
            return 1 - counted.cost / counted.padded_cost
        computed = counted.padding_rows + sum(len(each.part) for each in self._run.timings)
        has_fixed_sizes = bool(steps_of(self.task, "batch_sizes"))
        return counted.padding_rows / computed if computed and has_fixed_sizes else None

    def _call_model(self, limit: SoftLimit) -> None:
        try:
            self._run_rows(limit)
        except SoftTimeLimitExceeded as error:  # before the model was called
            again = self.task.acks_late and len(self._calls) > 1
            self._common_outcome = Outcome(again=True) if again else Outcome(error=error)
        except Exception as error:  # noqa: BLE001 (each item gets it, not the innermost alone)
            self._common_outcome = Outcome(error=error, origin=error.__traceback__)

    def _run_rows(self, limit: SoftLimit) -> None:
        try:
            prepare_shapes(self.task)  # without a limit: the shapes are for all batches
            with (
                self._span.around_model(len(self._columns[0])),
                limit.in_model(),
                pending_answer.running_batch(),
                self._instances.in_use(),
            ):
                require_key(self.task, self._columns, alone=len(self._calls) == 1)
                self._run = self._run or self._begin()
                self._run.call(uncollate=not self._uncollates_later)
        finally:
            self._note_broken()

    def _begin(self) -> BatchRun:
        return BatchRun(
            self.task._batch_runner,
            self._columns,
            alone=len(self._calls) == 1,
            most=self._payload.most,
            cost_limits=self._payload.cost_limits,
            unchanged=self._unchanged_columns,
        )

    def _unchanged_columns(self) -> Sequence[list[Any]]:
        """Return the columns as they came: the model may have changed what it got."""
        columns = columns_of(list(map(self._decode_again, self._deliveries, self._calls)))
        return columns if self._reused is None else self._reused.columns(columns)

    def _decode_again(self, delivery: Delivery, rows: CallRows) -> CallRows:
        if delivery.content_type is None or has_own_call(self.task):
            return rows  # it was decoded before, or its task class may have given it others
        args, kwargs, _ = delivery.decode(self._accept)
        return self.task._call_rows(Context(delivery.request), args, kwargs)

    def _uncollate(self, run: BatchRun) -> None:
        with self._instances.in_use(), pending_answer.running_batch():
            run.uncollate()
        self._note_broken()

    def _note_broken(self) -> None:
        global _broken  # noqa: PLW0603 (one device a process)
        _broken = _broken or self.task._batch_runner.broken  # of any task, on whatever thread


def facts_of(
    timings: Sequence[Timing],
    calls: Sequence[CallRows],
    deliveries: Sequence[Delivery],
    reused: ReusedRows | None = None,
    about: bytes = b"",
) -> dict[str, Facts]:
    """Return facts about the last model call that each request was in, by request id."""
    if reused is not None:
        last = _last_calls(timings, len(reused.running))
        cached = Timing((), reused.looked_up, 0.0)
        each = [last[place] if place >= 0 else cached for place in reused.places]
        return _facts_of_several(each, calls, deliveries, about)
    if not timings:
        return {}
    if len(timings) == 1:
        (only,) = timings
        shared, began = _shared_facts(only, deliveries[0], about=about), only.began
        return {
            each.task_id: (shared, max(began - each.arrived, 0.0))
            for each in deliveries
            if each.arrived is not None
        }
    return _facts_of_several(_last_calls(timings, count_rows(calls)), calls, deliveries, about)


def _last_calls(timings: Sequence[Timing], rows: int) -> list[Timing | None]:
    """Return for each row that ran the last call that it was in."""
    last: list[Timing | None] = [None] * rows
    for timing in timings:
        for index in timing.part:
            last[index] = timing
    return last


def _facts_of_several(
    last: Sequence[Timing | None],
    calls: Sequence[CallRows],
    deliveries: Sequence[Delivery],
    about: bytes,
) -> dict[str, Facts]:
    """Return the facts of requests from the last call of each row, which has no part if cached."""
    facts: dict[str, Facts] = {}
    start = 0
    for rows, delivery in zip(calls, deliveries, strict=True):
        end = start + (rows.rows if isinstance(rows, Chunk) else 1)
        counts = Counter(timing for timing in last[start:end] if timing is not None)
        cached = sum(count for timing, count in counts.items() if not timing.part)
        found = [timing for timing in counts if timing.part] or [*counts]
        start = end
        if found and delivery.arrived is not None:
            whole = found[0] if len(found) == 1 else _combined(found)
            wait = max(whole.began - delivery.arrived, 0.0)
            facts[delivery.task_id] = (_shared_facts(whole, delivery, cached, about), wait)
    return facts


def _combined(timings: Sequence[Timing]) -> Timing:
    """Return the rows of the largest of several calls, and the wait for and seconds of all."""
    part = max((timing.part for timing in timings), key=len)
    began = min(timing.began for timing in timings)
    return Timing(part, began, sum(timing.seconds for timing in timings))


def _shared_facts(timing: Timing, delivery: Delivery, cached: int = 0, about: bytes = b"") -> bytes:
    worker = str(delivery.request.get("hostname") or "")
    return batch_facts(len(timing.part), timing.seconds, worker, cached, about)
