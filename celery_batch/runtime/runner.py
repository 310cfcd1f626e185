"""Runs a batch through a model, with an outcome for every item."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, islice
from traceback import clear_frames
from types import TracebackType
from typing import Any, NamedTuple

from celery_batch.batching.call_plan import CallPlan
from celery_batch.batching.cost import CostLimits
from celery_batch.batching.isolation import Bisection, SafeSize
from celery_batch.batching.shapes import most_rows, round_up
from celery_batch.errors import (
    BatchError,
    ItemTooLarge,
    LoadFailed,
    OutOfMemory,
)
from celery_batch.formatting import brief
from celery_batch.runtime.failures import free_memory, is_device_broken, is_out_of_memory
from celery_batch.runtime.outputs import checked, owned
from celery_batch.runtime.stages import Stages

__all__ = [
    "BatchRun",
    "CallCost",
    "Counts",
    "ErrorPolicy",
    "FixedSizes",
    "Outcome",
    "Runner",
    "Timing",
    "as_outcome",
    "run_all",
]

logger = logging.getLogger(__name__)

#: Seconds between two warnings of a runner that items do not fit into one batch.
_WARNING_INTERVAL = 60.0


class Outcome(NamedTuple):
    """The outcome of one item: a value, or an error."""

    value: Any = None  # the model's output for the item
    error: Exception | None = None  # why there is none
    origin: TracebackType | None = None  # the traceback, if the model raised the error
    again: bool = False  # there is neither: the run ended early, and the item is to run again alone
    whole: Exception | None = None  # the error of the whole chunk, if `error` is only one row's

    def unwrap(self) -> Any:
        """Return the value, or raise the error as the model raised it."""
        if self.error is None:
            return self.value
        # One error may belong to many items, and each raise would make its traceback longer.
        raise self.error.with_traceback(self.origin)


def as_outcome(output: Any) -> Outcome:
    """Return one of `BatchRun.outputs` as an outcome, if it is none."""
    return output if isinstance(output, Outcome) else Outcome(value=output)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a model was called, and for how long."""

    part: Sequence[int]  # the indexes of the items of the batch in this call
    began: float  # when, on the monotonic clock
    seconds: float  # how long it took


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """How a model's errors are handled."""

    #: Find the items that make a batch fail, by calling the model again with parts of it; else all
    #: items fail.
    isolate_failures: bool = True
    #: Errors that the function raises for the whole batch.
    verdicts: tuple[type[Exception], ...] = ()
    interrupts: tuple[type[Exception], ...] = ()  # errors from outside that end the run


@dataclass(frozen=True, slots=True)
class CallCost:
    """What items cost, and how much one call of the model may."""

    #: Takes the batch's columns; returns the cost of each item, or its error.
    of_rows: Callable[[Sequence[Sequence[Any]]], Sequence[float | Exception]]
    limits: CostLimits  # the largest call


@dataclass(frozen=True, slots=True)
class FixedSizes:
    """The numbers of rows that calls of a model have."""

    sizes: tuple[int, ...] = ()  # in ascending order
    #: Returns the row that fills calls up, a value for each parameter; None to repeat the last row
    #: of the call.
    padding_row: Callable[[], Sequence[Any]] | None = None

    def fill(self, columns: Sequence[list[Any]]) -> list[list[Any]]:
        """Return the columns of a call, with padding rows up to the next size."""
        rows = len(columns[0])
        missing = round_up(self.sizes, rows) - rows
        row = self.padding_row() if self.padding_row else [column[-1] for column in columns]
        return [
            column + _copies(value, missing) for column, value in zip(columns, row, strict=True)
        ]


def _copies(value: Any, count: int) -> list[Any]:
    """Return copies of a value, as a model may change its rows where they are."""
    with suppress(Exception):  # a streamer's caller may give anything
        if isinstance(value, (dict, list)):
            return [deepcopy(value) for _ in range(count)]
        return [deepcopy(value)] * count
    return [value] * count


@dataclass(slots=True)
class Counts:
    """What is counted of a run."""

    calls: int = 0  # how often the model was called
    isolated: int = 0  # items that made their batch fail
    split: int = 0  # batches that raised, and whose items all succeeded in parts
    out_of_memory: int = 0  # calls that ran out of memory
    cost: float = 0.0  # what the items of all calls have cost, where that is limited
    padded_cost: float = 0.0  # what these calls have cost with their padding
    padding_rows: int = 0  # rows that filled calls up to their sizes


class Call(NamedTuple):
    """A call of the model."""

    part: range  # the indexes of its items
    size: float  # the number of its rows, with padding rows, or its cost, where that is limited
    was_limited: bool  # whether it would have had more items if more fitted into memory


@dataclass(slots=True)
class _Collated:
    """The first call of a batch, whose rows were collated before the batch runs."""

    items: Sequence[int]  # the indexes of its items
    rows: int  # the number of its rows, with padding rows
    value: Any = None  # what `collate` returned
    error: Exception | None = None  # what it raised instead


class _Uncollated(NamedTuple):
    """The output of a call, of which `uncollate` has made no outputs yet."""

    items: Sequence[int]  # the indexes of its items
    call: Call
    rows: int  # the number of its rows, with padding rows
    output: Any  # what `predict` returned


class Runner:
    """A loaded model, and what is known of it in this process; threads may share it."""

    def __init__(
        self,
        predict: Callable[..., Any],
        name: str,
        error_policy: ErrorPolicy | None = None,
        *,
        most: int | None = None,
        cost: CallCost | None = None,
        fixed_sizes: FixedSizes | None = None,
    ) -> None:
        self.stages = predict if isinstance(predict, Stages) else Stages(predict)
        self.name = name
        self.error_policy = error_policy or ErrorPolicy()
        self.most = most or sys.maxsize
        self.cost = cost
        self.fixed_sizes = fixed_sizes or FixedSizes()
        #: What fits into memory, as far as this runner has found out.
        self.safe_size = SafeSize()
        #: The error of a broken device, after which this process must run no more batches.
        self.broken: str | None = None
        self._warned_at = -math.inf

    @property
    def has_stages(self) -> bool:
        """Whether the model has more stages than `predict`."""
        return self.stages.collate is not None or self.stages.uncollate is not None

    def run(self, *columns: list[Any]) -> list[Outcome]:
        """Run a batch, a list for each parameter; return an outcome for each item."""
        run = BatchRun(self, columns, alone=len(columns[0]) == 1)
        return [as_outcome(output) for output in run.call()]

    def forget(self) -> None:
        """Forget what fits into memory: the model has been loaded again."""
        self.safe_size = SafeSize()

    def warn_of_split(self, error: Exception, counts: Counts, size: int) -> None:
        """Warn once in a while of batches whose items all succeeded in parts."""
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_INTERVAL:
            self._warned_at = now
            logger.warning(
                "%s raised %r on a batch of %d items, which all succeeded in smaller parts, after"
                " %d calls in place of one: if their shapes differ, batch_by keeps these apart",
                self.name, error, size, counts.calls,
            )  # fmt: skip


class BatchRun:
    """
    One batch on its way through a model.

    `collate` and `uncollate` may be called on other threads, before `call` and after it.
    """

    def __init__(
        self,
        runner: Runner,
        columns: Sequence[list[Any]],  # a list for each parameter
        *,
        alone: bool = False,  # all items are one request, whose error is one that ends the run
        most: int | None = None,  # items in one call; as the runner says unless given
        cost_limits: CostLimits | None = None,  # of one call; likewise
        # Returns the columns as they came, for calls that run again; else those that calls got run.
        unchanged: Callable[[], Sequence[list[Any]]] | None = None,
    ) -> None:
        self._runner = runner
        self._stages = runner.stages
        self._alone = alone
        self._unchanged = unchanged
        #: The model's output for each item, or an outcome in the place of one that is missing.
        self.outputs: list[Any] = [Outcome(again=True)] * len(columns[0])
        #: When the model was called, and what was counted.
        self.timings: list[Timing] = []
        self.counts = Counts()
        self._most = runner.most if most is None else most
        #: The calls, and the limits of one of them, where cost is limited.
        self._plan: CallPlan | None = None
        self._cost_limits: CostLimits | None = None
        #: The indexes of its items in the order in which they run, and the columns in this order.
        self._order: Sequence[int] = range(len(self.outputs))
        self._columns = columns
        if runner.cost is not None:
            limits = runner.cost.limits if most is None else replace(runner.cost.limits, rows=most)
            self._cost_limits = cost_limits or limits
            self._plan = self._planned(runner.cost, self._cost_limits)
            self._order = self._plan.order
            self._columns = self._ordered(columns)
        #: The parts of the batch that have not run.
        self._bisection = Bisection(len(self._order))
        #: The first call, if its rows are collated.
        self._collated: _Collated | None = None
        #: The outputs of calls that are uncollated later.
        self._uncollated: list[_Uncollated] = []
        #: What the first call raised that was split in search of a failing item.
        self._split_by: Exception | None = None

    def collate(self) -> None:
        """Collate the rows of the first call; what that raises is raised again by the call."""
        call = self._next_call() if self._stages.collate is not None else None
        if call is None or self._stages.collate is None:
            return
        self._bisection = Bisection(len(self._order))  # less may fit when the batch runs
        items, rows = self._order[call.part.start : call.part.stop], 0
        try:
            filled = self._rows(call)
            rows = len(filled[0])
            self._collated = _Collated(items, rows, self._stages.collate(*filled))
        except Exception as error:  # noqa: BLE001 (raised again when the call is made)
            if is_out_of_memory(error):
                clear_frames(error.__traceback__)  # of tensors, which others may need
            self._collated = _Collated(items, rows, error=error)

    def call(self, *, uncollate: bool = True) -> list[Any]:
        """Call the model, and return the outputs, without those that are not uncollated yet."""
        plan, order = self._plan, self._order
        uncollate = uncollate or self._stages.uncollate is None
        while (call := self._next_call()) is not None:
            part, began = call.part, time.monotonic()
            if plan is not None:
                self.counts.cost += plan.sum(part)
                self.counts.padded_cost += plan.cost(part)
            found = self._try(call, uncollate=uncollate)
            seconds = time.monotonic() - began
            self.timings.append(Timing(order[part.start : part.stop], began, seconds))
            # None if it runs again in halves; if the run has ended, the rest of the batch as well.
            self._put(order[part.start : part.start + len(found)], found)
        self._unchanged = None  # which may refer to us: the batch's values would stay
        outputs, error = self.outputs, self._split_by
        if error is not None and not any(isinstance(each, Outcome) for each in outputs):
            self.counts.split += 1
            self._runner.warn_of_split(error, self.counts, len(outputs))
        return outputs

    def uncollate(self) -> None:
        """Put outputs in their places; if that raises, items run again alone."""
        while self._uncollated:
            items, call, rows, output = self._uncollated.pop(0)
            found: Sequence[Any]
            try:
                found = self._outputs_of(self._stages.outputs(output), len(items), rows)
            except Exception as error:  # noqa: BLE001 (any error of a model is its items' outcome)
                found = self._late_outcomes(error, call)
            self._put(items[: len(found)], found)
            output = None  # it may be large

    def _put(self, items: Sequence[int], found: Sequence[Any]) -> None:
        """Put the outputs of these items in their places."""
        if isinstance(items, range):
            self.outputs[items.start : items.stop] = found
            return
        for index, output in zip(items, found, strict=True):
            self.outputs[index] = output

    def _planned(self, cost: CallCost, limits: CostLimits) -> CallPlan:
        """Return in which calls it runs; put errors in the outputs of items without a cost."""
        costs = cost.of_rows(self._columns)
        for index, each in enumerate(costs):
            if isinstance(each, Exception):
                self.outputs[index] = Outcome(error=each)
        known = [None if isinstance(each, Exception) else each for each in costs]
        return CallPlan(known, limits, self._cost_of_padding(cost))

    def _cost_of_padding(self, cost: CallCost) -> float | None:
        """Return what the padding row costs; None if the last row is repeated."""
        row = self._runner.fixed_sizes.padding_row
        if row is None:
            return None
        (found,) = cost.of_rows([[value] for value in row()])
        if isinstance(found, Exception):
            raise found
        return found

    def _ordered(self, columns: Sequence[list[Any]]) -> list[list[Any]]:
        return [[column[index] for index in self._order] for column in columns]

    def _next_call(self) -> Call | None:
        """Return the next call of the model; None when all items have run."""
        start, safe = self._bisection.start, self._runner.safe_size.largest
        largest = self._largest(start, math.inf if safe is None else safe)
        part = self._bisection.next(largest)
        if part is None:
            return None
        size: float = round_up(self._runner.fixed_sizes.sizes, len(part))
        if self._plan is not None and self._limits_cost:
            size = self._plan.cost(part)
        is_as_large = safe is not None and len(part) == largest
        was_limited = is_as_large and largest < self._largest(start, math.inf)
        return Call(part, size, was_limited)

    def _largest(self, start: int, safe: float) -> int:
        """Return most items of the next call of the model, where so much fits into memory."""
        plan, limits = self._plan, self._cost_limits
        if plan is None or limits is None:
            return most_rows(self._runner.fixed_sizes.sizes, int(min(self._most, safe)))
        if self._limits_cost:
            return plan.count(start, replace(limits, cost=min(limits.cost, safe)))
        return plan.count(start, replace(limits, rows=int(min(limits.rows, safe))))

    @property
    def _limits_cost(self) -> bool:
        """Whether calls are limited by cost, so that what fits into memory is known in cost."""
        return self._cost_limits is not None and self._cost_limits.cost < math.inf

    def _try(self, call: Call, *, uncollate: bool) -> Sequence[Any]:
        """Return an output for each item of the call; none if it runs again in halves."""
        part = call.part
        self.counts.calls += 1
        try:
            rows, output = self._predict(call)
            if uncollate:
                outputs = self._outputs_of(self._stages.outputs(output), len(part), rows)
            else:
                items = self._order[part.start : part.stop]
                kept = owned(output, on_device=True)
                self._uncollated.append(_Uncollated(items, call, rows, kept))
                outputs = []
        except Exception as error:  # noqa: BLE001 (any error of a model is its items' outcome)
            return self._handle_error(error, call)
        self._runner.safe_size.fitted(call.size, was_limited=call.was_limited)
        return outputs

    def _predict(self, call: Call) -> tuple[int, Any]:
        """Call `predict`; return the number of rows, and what it has returned."""
        part, stages = call.part, self._stages
        ready, self._collated = self._collated, None
        if ready is not None:
            value, ready.value = ready.value, None  # it may be large
            if ready.items == self._order[part.start : part.stop]:
                if ready.error is not None:
                    raise ready.error
                self.counts.padding_rows += ready.rows - len(part)
                return ready.rows, stages.predict(value)
            del value  # before another call is collated
        filled = self._rows(call)
        rows = len(filled[0])
        self.counts.padding_rows += rows - len(part)
        arguments = filled if stages.collate is None else (stages.collate(*filled),)
        return rows, stages.predict(*arguments)

    def _rows(self, call: Call) -> list[list[Any]]:
        """Return the columns of a call, with padding rows if it has fewer than its size."""
        rows = [column[call.part.start : call.part.stop] for column in self._columns]
        fixed_sizes = self._runner.fixed_sizes
        return fixed_sizes.fill(rows) if fixed_sizes.sizes else rows

    def _outputs_of(self, returned: Any, count: int, rows: int) -> list[Any]:
        """Return an output for each of so many items, which were filled up to a number of rows."""
        outputs = checked(self._runner.name, returned, rows, rows - count)
        return [
            self._returned_error(output) if isinstance(output, Exception) else output
            for output in islice(outputs, count)
        ]

    def _handle_error(self, error: Exception, call: Call) -> Sequence[Outcome]:
        """Handle an error of a part of the batch, which may end the run of the rest, too."""
        part, bisection, policy = call.part, self._bisection, self._runner.error_policy
        if is_out_of_memory(error):
            failure = self._note_out_of_memory(error, call)
            if policy.isolate_failures and self._split(part):
                return ()
            self.counts.isolated += bisection.was_split and len(part) == 1
            return _all(failure, part)
        is_interrupt = isinstance(error, policy.interrupts)
        if is_interrupt or is_device_broken(error):
            left = bisection.abandon()
            if not is_interrupt:
                self._runner.broken = str(error)
            if self._alone:
                return _all(error, range(part.start, part.stop + len(left)))
            is_cause = len(part) == 1 and not is_interrupt
            return _all(error, part) if is_cause else ()
        if self._may_isolate(error) and self._split(part):
            logger.info("%s raised %r on %d items: looking for the item that fails",
                        self._runner.name, error, len(part))  # fmt: skip
            self._split_by = self._split_by or error.with_traceback(None)  # it may hold tensors
            return ()
        self.counts.isolated += bisection.was_split and len(part) == 1
        return _all(error, part)

    def _split(self, part: range) -> bool:
        """Have a part run again in halves; return whether it has any."""
        if not self._bisection.split(part):
            return False
        if self._unchanged is not None:  # the call that failed may have changed its items
            self._columns = self._ordered(self._unchanged())
        return True

    def _may_isolate(self, error: Exception) -> bool:
        """Return whether to look for the item that an error is about."""
        policy = self._runner.error_policy
        is_verdict = isinstance(error, (BatchError, *policy.verdicts))
        is_verdict = is_verdict and not isinstance(error, ItemTooLarge)  # of one row
        return policy.isolate_failures and not is_verdict

    def _late_outcomes(self, error: Exception, call: Call) -> Sequence[Outcome]:
        """Handle an error of `uncollate`; return no outcomes if the items run again, each alone."""
        part, count = call.part, len(call.part)
        may_run_again = count > 1 and self._may_isolate(error)
        if is_out_of_memory(error):
            error = self._note_out_of_memory(error, call)
        elif is_device_broken(error):
            self._runner.broken = str(error)
        elif may_run_again:
            logger.info("%s.uncollate raised %r for %d items, which run again alone",
                        self._runner.name, error, count)  # fmt: skip
        return () if may_run_again else _all(error, part)

    def _note_out_of_memory(self, error: Exception, call: Call) -> OutOfMemory:
        """Free and learn what can be, and return the error of the call's items."""
        count, runner = len(call.part), self._runner
        free_memory(error)
        self.counts.out_of_memory += 1
        has_smaller = self._limits_cost or call.size > most_rows(runner.fixed_sizes.sizes, 1)
        if count > 1 and has_smaller:
            runner.safe_size.did_not_fit(call.size)
            unit = "a cost of " if self._limits_cost else ""
            logger.warning(
                "%s ran out of memory with %d items: batches of up to %s%g from now on",
                runner.name, count, unit, runner.safe_size.largest,
            )  # fmt: skip
        return self._out_of_memory_error(error, count)

    def _out_of_memory_error(self, error: BaseException, size: int = 1) -> OutOfMemory:
        items = "one item alone does" if size == 1 else f"{size} items do"
        why = f": {error}" if str(error) else ""
        failure = OutOfMemory(f"{self._runner.name}: {items} not fit into memory{why}")
        failure.__cause__ = error.with_traceback(None)
        return failure

    def _returned_error(self, error: Exception) -> Outcome:
        if isinstance(error, MemoryError):  # on which Celery ends the worker
            return Outcome(error=self._out_of_memory_error(error))
        return Outcome(error=error)


def run_all(
    name: str,
    predict: Callable[..., Any],
    columns: Sequence[list[Any]],
    fixed_sizes: FixedSizes | None = None,
) -> None:
    """Run a batch to warm up; raise `LoadFailed` for what any of its items fails with."""
    runner = Runner(predict, name, ErrorPolicy(isolate_failures=False), fixed_sizes=fixed_sizes)
    copies = [[*chain.from_iterable(_copies(value, 1) for value in each)] for each in columns]
    count, number, outcomes = len(columns[0]), 0, []
    try:
        outcomes = runner.run(*copies)
        for number, outcome in enumerate(outcomes):  # noqa: B007 (the error's)
            outcome.unwrap()
    except (Exception, SystemExit) as error:
        words = f"{name}: {type(error).__name__}: {error}"
        words = str(error) if isinstance(error, BatchError) else words  # which begins with the name
        row = ", ".join(brief(column[number]) for column in columns)
        if count > 1 and len({id(each.error) for each in outcomes}) <= 1:  # of the whole call
            row = f"{count} examples, the first {row}"
        elif count > 1:
            row = f"the example {row}, one of {count}"
        else:
            row = f"the example {row}"
        raise LoadFailed(f"{words} (in the warm-up with {row})") from error


def _all(error: Exception, part: range) -> list[Outcome]:
    return [Outcome(error=error, origin=error.__traceback__)] * len(part)
