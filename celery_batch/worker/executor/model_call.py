"""Calls the model once for a batch, and records how each output was made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import sub
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_batch.pending_answer import pending_answer
from celery_batch.protocol import facts_of_all
from celery_batch.rows import CallRows, Chunk, columns_of, count_rows, outcomes_of, run_rows
from celery_batch.runtime import registry
from celery_batch.runtime.runner import Outcome, Timing
from celery_batch.task import BatchTask
from celery_batch.telemetry.otel import BatchSpan
from celery_batch.telemetry.report import Work
from celery_batch.worker.dispatch.outcome import FollowUp
from celery_batch.worker.dispatch.payload import Delivery
from celery_batch.worker.executor import interpreter
from celery_batch.worker.executor.time_limit import SoftLimit
from celery_batch.worker.intake.expiry import Expiries

__all__ = [
    "Facts",
    "ModelCall",
    "facts_of",
    "out_of_use",
]


#: Why this process is of no more use: its device fails whatever it is asked.
_broken: str | None = None


def out_of_use() -> str | None:
    """Say why this process can run no more batches, if it cannot."""
    return _broken


class ModelCall:
    """
    A batch that is ready for its model.

    Everything that touches the model happens in `__call__`, and so on one thread:
    devices mind who asks them.

    Args:
        task: The batch task.
        asked: What each request asks the model.
        span: The batch's, for tracing.
        expiries: Until when each request is wanted.
    """

    def __init__(
        self, task: BatchTask, asked: Sequence[CallRows], span: BatchSpan, expiries: Expiries
    ) -> None:
        self.task = task
        self._expiries = expiries
        self._asked = asked
        self._columns = columns_of(asked)
        self._rows = count_rows(asked)
        self._span = span
        #: Places of those whom the model was not asked for, as it was too late.
        self.left_out: Collection[int] = ()
        #: Most rows in one call of the model; None for what the task says.
        self.most: int | None = None
        #: When the model was called, and for which rows.
        self.timings: list[Timing] = []
        #: The model's answers to `_asked`, or what is everybody's outcome.
        self._answers: list[Any] = []
        self._whole: Outcome | None = None
        #: By how much the run has raised what its runner counts.
        self._counted: tuple[int, ...] = ()
        #: What keeps items from having an answer, where there is none.
        self.follow_up = FollowUp.BROKE_OFF

    @property
    def work(self) -> Work:
        """What all calls were to the model; reckoned beside the next batch, not before it."""
        return _work(self.timings, *self._counted) if self._counted else Work()

    def __call__(self, limit: SoftLimit) -> None:
        """
        Run the model; its errors are outcomes, which it leaves for `outcomes`.

        Args:
            limit: The soft time limit of this batch.
        """
        if _broken is not None:  # since this batch was made ready
            self.follow_up, self._whole = FollowUp.REFUSED, Outcome(again=True)
            return
        # While another batch ran, behind which this one lay.
        self.left_out = self._expiries.passed()
        if self.left_out:
            self._leave_out(self.left_out)
        if self._asked:
            self._ask(limit)

    def outcomes(self) -> Sequence[Outcome]:
        """Return what became of each request; reckoned beside the next batch, not before it."""
        if self._whole is not None:
            found = [self._whole] * len(self._asked)
        else:
            found = outcomes_of(self.task, self._asked, self._answers)
        late = self.left_out
        if not late:
            return found
        answers, count = iter(found), len(found) + len(late)
        return [Outcome(again=True) if n in late else next(answers) for n in range(count)]

    def _leave_out(self, places: Collection[int]) -> None:
        self._asked = [each for n, each in enumerate(self._asked) if n not in places]
        self._columns, self._rows = columns_of(self._asked), count_rows(self._asked)

    def _ask(self, limit: SoftLimit) -> None:
        try:
            self._answers = self._observed(limit)
        except SoftTimeLimitExceeded as error:  # it struck before the model was called
            again = self.task.acks_late and len(self._asked) > 1
            self._whole = Outcome(again=True) if again else Outcome(error=error)
        except Exception as error:  # noqa: BLE001 (every item has to hear of it, not the innermost alone)
            self._whole = Outcome(error=error, origin=error.__traceback__)

    def _observed(self, limit: SoftLimit) -> list[Any]:
        """Run the model, and note what its runner has learnt."""
        global _broken  # noqa: PLW0603 (one device a process)
        runner = self.task._batch_runner
        if self.most is not None:
            runner.limit(self.most)
        before = runner.calls, runner.isolated, runner.out_of_memory
        try:
            with (
                self._span.around_model(self._rows),
                limit.in_model(),
                pending_answer.running_batch(),
                registry.one_batch(),
            ):
                interpreter.share()
                return run_rows(self.task, self._asked, self._columns, self.timings)
        finally:
            after = runner.calls, runner.isolated, runner.out_of_memory
            self._counted = tuple(map(sub, after, before))
            _broken = runner.broken


def _work(timings: Sequence[Timing], calls: int, isolated: int, out_of_memory: int) -> Work:
    if not timings:
        return Work(calls)
    last = timings[-1]
    seconds = sum(timing.seconds for timing in timings)
    return Work(
        calls, timings[0].began, last.began + last.seconds, seconds, isolated, out_of_memory
    )


#: What is the same for all whom a model call has answered, as it is told, and one's own wait.
Facts = tuple[bytes, float]


def facts_of(
    timings: Sequence[Timing], asked: Sequence[CallRows], deliveries: Sequence[Delivery]
) -> dict[str, Facts]:
    """
    Return by their ids what is known of the requests of one batch.

    Args:
        timings: Of all calls of the model, in their order.
        asked: What each request asks.
        deliveries: The same requests.

    Returns:
        For each request, as far as that is known, the last call that it was in.  Where
        its rows were in several: the rows of the largest, the seconds of all, and the
        wait for the first.
    """
    if not timings:
        return {}
    if len(timings) == 1:
        (only,) = timings
        alike, began = _alike(only, deliveries[0]), only.began
        return {
            each.task_id: (alike, max(began - each.arrived, 0.0))
            for each in deliveries
            if each.arrived is not None
        }
    return _of_several(timings, asked, deliveries)


def _of_several(
    timings: Sequence[Timing], asked: Sequence[CallRows], deliveries: Sequence[Delivery]
) -> dict[str, Facts]:
    last: list[Timing | None] = [None] * count_rows(asked)
    for timing in timings:
        last[timing.part.start : timing.part.stop] = [timing] * len(timing.part)
    facts: dict[str, Facts] = {}
    start = 0
    for each, delivery in zip(asked, deliveries, strict=True):
        end = start + (each.rows if isinstance(each, Chunk) else 1)
        calls = [call for call in dict.fromkeys(last[start:end]) if call is not None]
        start = end
        if calls and delivery.arrived is not None:
            whole = calls[0] if len(calls) == 1 else _together(calls)
            facts[delivery.task_id] = (
                _alike(whole, delivery),
                max(whole.began - delivery.arrived, 0.0),
            )
    return facts


def _together(calls: Sequence[Timing]) -> Timing:
    largest = max(calls, key=lambda call: len(call.part))
    return Timing(
        largest.part, min(call.began for call in calls), sum(call.seconds for call in calls)
    )


def _alike(timing: Timing, delivery: Delivery) -> bytes:
    return facts_of_all(
        len(timing.part), timing.seconds, str(delivery.request.get("hostname") or "")
    )
