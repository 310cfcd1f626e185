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
    "CallCost",
    "Collated",
    "Counts",
    "ErrorPolicy",
    "FixedSizes",
    "Outcome",
    "Runner",
    "Timing",
    "Uncollated",
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
    """Return one of `Runner.outputs` as an outcome, if it is none."""
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
    """What is counted of a run; threads share a runner, so that it keeps none itself."""

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
class Collated:
    """The first call of a batch, whose rows were collated before the batch runs."""

    items: Sequence[int]  # the indexes of its items
    rows: int  # the number of its rows, with padding rows
    value: Any = None  # what `collate` returned
    error: Exception | None = None  # what it raised instead


class Uncollated(NamedTuple):
    """The output of a call, of which `uncollate` has made no outputs yet."""

    items: Sequence[int]  # the indexes of its items
    call: Call
    rows: int  # the number of its rows, with padding rows
    output: Any  # what `predict` returned


@dataclass(slots=True)
class _BatchRun:
    """A batch on its way through a model: its calls, and what is kept between their stages."""

    columns: Sequence[list[Any]]  # one list per parameter, in the order of the plan if there is one
    order: Sequence[int]  # the indexes of its items, in this order
    bisection: Bisection  # the parts of the batch that have not run
    plan: CallPlan | None  # its calls, where cost is limited
    counts: Counts  # what is counted of it
    alone: bool  # whether all items are one request
    collated: Collated | None = None  # its first call, if its rows are collated
    #: Takes the outputs of calls that are uncollated later; None to do that at once.
    uncollated: list[Uncollated] | None = None
    #: What the first call raised that was split in search of a failing item.
    split_by: Exception | None = None
    #: Returns the batch's columns as they came; None if only those are to be had that calls got.
    unchanged: Callable[[], Sequence[list[Any]]] | None = None

    def split(self, part: range) -> bool:
        """Have a part run again in halves; return whether it has any."""
        if not self.bisection.split(part):
            return False
        if self.unchanged is not None:  # the call that failed may have changed its items
            columns = self.unchanged()
            self.columns = [[column[index] for index in self.order] for column in columns]
        return True


class Runner:
    """Runs batches, as a list for each parameter, through a loaded model; threads may share it."""

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
        self._stages = predict if isinstance(predict, Stages) else Stages(predict)
        self._name = name
        self._error_policy = error_policy or ErrorPolicy()
        self._most = most or sys.maxsize
        self._cost = cost
        self._fixed_sizes = fixed_sizes or FixedSizes()
        #: What fits into memory, as far as this runner has found out.
        self.safe_size = SafeSize()
        #: The error of a broken device, after which this process must run no more batches.
        self.broken: str | None = None
        self._warned_at = -math.inf

    @property
    def has_stages(self) -> bool:
        """Whether the model has more stages than `predict`."""
        return self._stages.collate is not None or self._stages.uncollate is not None

    def run(
        self,
        *columns: list[Any],
        timings: list[Timing] | None = None,
        counts: Counts | None = None,
    ) -> list[Outcome]:
        """Run one batch, and return an outcome for each item; raise no error of the model."""
        alone = len(columns[0]) == 1
        outputs = self.outputs(*columns, alone=alone, timings=timings, counts=counts)
        return [as_outcome(output) for output in outputs]

    def outputs(
        self,
        *columns: list[Any],
        alone: bool,  # all items are one request, whose error is one that ends the run
        timings: list[Timing] | None = None,
        counts: Counts | None = None,
        collated: Collated | None = None,  # for these columns; not used for another first call
        uncollated: list[Uncollated] | None = None,  # takes what is left to `uncollate`
        # Returns the columns as they came, for calls that run again; else those that calls got run.
        unchanged: Callable[[], Sequence[list[Any]]] | None = None,
    ) -> list[Any]:
        """Run one batch as `run` does, with an outcome only in the place of a missing output."""
        outputs: list[Any] = [Outcome(again=True)] * len(columns[0])
        run = self._begin(columns, outputs, Counts() if counts is None else counts, alone=alone)
        run.collated, run.unchanged = collated, unchanged
        if self._stages.uncollate is not None:
            run.uncollated = uncollated
        plan, order = run.plan, run.order
        while (call := self._next_call(run)) is not None:
            part, began = call.part, time.monotonic()
            if plan is not None:
                run.counts.cost += plan.sum(part)
                run.counts.padded_cost += plan.cost(part)
            found = self._try(run, call)
            if timings is not None:
                seconds = time.monotonic() - began
                timings.append(Timing(order[part.start : part.stop], began, seconds))
            # None if it runs again in halves; if the run has ended, the rest of the batch as well.
            _put(outputs, order[part.start : part.start + len(found)], found)
        if run.split_by is not None and not any(isinstance(each, Outcome) for each in outputs):
            self._note_split(run.split_by, run.counts, len(outputs))
        return outputs

    def collate(self, *columns: list[Any]) -> Collated | None:
        """Collate the first call of a batch for `outputs`, on any thread; None if there is none."""
        if self._stages.collate is None or not columns[0]:
            return None
        run = self._begin(columns, [None] * len(columns[0]), Counts(), alone=False)
        call = self._next_call(run)
        if call is None:
            return None
        items, rows = run.order[call.part.start : call.part.stop], 0
        try:
            filled = self._rows(run, call)
            rows = len(filled[0])
            return Collated(items, rows, self._stages.collate(*filled))
        except Exception as error:  # noqa: BLE001 (raised again when the call is made)
            if is_out_of_memory(error):
                clear_frames(error.__traceback__)  # of tensors, which others may need
            return Collated(items, rows, error=error)

    def uncollate(self, uncollated: list[Uncollated], outputs: list[Any], counts: Counts) -> None:
        """Put outputs in their places, on any thread; if that raises, items run again alone."""
        while uncollated:
            items, call, rows, output = uncollated.pop(0)
            found: Sequence[Any]
            try:
                found = self._outputs_of(self._stages.outputs(output), len(items), rows)
            except Exception as error:  # noqa: BLE001 (any error of a model is its items' outcome)
                found = self._late_outcomes(error, call, counts)
            _put(outputs, items[: len(found)], found)
            output = None  # it may be large

    def limit(self, most: int, cost: CostLimits | None = None) -> None:
        """Run at most this many items, of that cost, in one call from now on."""
        self._most = most
        if self._cost is not None:
            limits = cost or replace(self._cost.limits, rows=most)
            self._cost = replace(self._cost, limits=limits)

    def forget(self) -> None:
        """Forget what fits into memory: the model has been loaded again."""
        self.safe_size = SafeSize()

    def _begin(
        self, columns: Sequence[list[Any]], outputs: list[Any], counts: Counts, *, alone: bool
    ) -> _BatchRun:
        """Return a batch as it will run; put errors in the outputs of items without a cost."""
        if self._cost is None:
            order: Sequence[int] = range(len(outputs))
            return _BatchRun(columns, order, Bisection(len(order)), None, counts, alone)
        plan = self._plan(self._cost, columns, outputs)
        order = plan.order
        columns = tuple([column[index] for index in order] for column in columns)
        return _BatchRun(columns, order, Bisection(len(order)), plan, counts, alone)

    def _plan(self, cost: CallCost, columns: Sequence[list[Any]], outputs: list[Any]) -> CallPlan:
        """Return in which calls a batch runs; put errors in the outputs of items without a cost."""
        costs = cost.of_rows(columns)
        for index, each in enumerate(costs):
            if isinstance(each, Exception):
                outputs[index] = Outcome(error=each)
        known = [None if isinstance(each, Exception) else each for each in costs]
        return CallPlan(known, cost.limits, self._cost_of_padding(cost))

    def _cost_of_padding(self, cost: CallCost) -> float | None:
        """Return what the padding row costs; None if the last row is repeated."""
        if self._fixed_sizes.padding_row is None:
            return None
        (found,) = cost.of_rows([[value] for value in self._fixed_sizes.padding_row()])
        if isinstance(found, Exception):
            raise found
        return found

    def _next_call(self, run: _BatchRun) -> Call | None:
        """Return the next call of the model; None when all items have run."""
        bisection, plan = run.bisection, run.plan
        start, safe = bisection.start, self.safe_size.largest
        largest = self._largest(plan, start, math.inf if safe is None else safe)
        part = bisection.next(largest)
        if part is None:
            return None
        size: float = round_up(self._fixed_sizes.sizes, len(part))
        if plan is not None and self._limits_cost:
            size = plan.cost(part)
        is_as_large = safe is not None and len(part) == largest
        was_limited = is_as_large and largest < self._largest(plan, start, math.inf)
        return Call(part, size, was_limited)

    def _largest(self, plan: CallPlan | None, start: int, safe: float) -> int:
        """Return most items of the next call of the model, where so much fits into memory."""
        if plan is None or self._cost is None:
            return most_rows(self._fixed_sizes.sizes, int(min(self._most, safe)))
        limits = self._cost.limits
        if self._limits_cost:
            return plan.count(start, replace(limits, cost=min(limits.cost, safe)))
        return plan.count(start, replace(limits, rows=int(min(limits.rows, safe))))

    @property
    def _limits_cost(self) -> bool:
        """Whether calls are limited by cost, so that what fits into memory is known in cost."""
        return self._cost is not None and self._cost.limits.cost < math.inf

    def _try(self, run: _BatchRun, call: Call) -> Sequence[Any]:
        """Return an output for each item of the call; none if it runs again in halves."""
        part = call.part
        run.counts.calls += 1
        try:
            rows, output = self._call(run, call)
            if run.uncollated is None:
                outputs = self._outputs_of(self._stages.outputs(output), len(part), rows)
            else:
                items = run.order[part.start : part.stop]
                kept = owned(output, on_device=True)
                run.uncollated.append(Uncollated(items, call, rows, kept))
                outputs = []
        except Exception as error:  # noqa: BLE001 (any error of a model is its items' outcome)
            return self._handle_error(error, run, call)
        self.safe_size.fitted(call.size, was_limited=call.was_limited)
        return outputs

    def _call(self, run: _BatchRun, call: Call) -> tuple[int, Any]:
        """Call `predict`; return the number of rows, and what it has returned."""
        part, stages = call.part, self._stages
        ready, run.collated = run.collated, None
        if ready is not None:
            value, ready.value = ready.value, None  # it may be large
            if ready.items == run.order[part.start : part.stop]:
                if ready.error is not None:
                    raise ready.error
                run.counts.padding_rows += ready.rows - len(part)
                return ready.rows, stages.predict(value)
            del value  # before another call is collated
        filled = self._rows(run, call)
        rows = len(filled[0])
        run.counts.padding_rows += rows - len(part)
        arguments = filled if stages.collate is None else (stages.collate(*filled),)
        return rows, stages.predict(*arguments)

    def _rows(self, run: _BatchRun, call: Call) -> list[list[Any]]:
        """Return the columns of a call, with padding rows if it has fewer than its size."""
        rows = [column[call.part.start : call.part.stop] for column in run.columns]
        return self._fixed_sizes.fill(rows) if self._fixed_sizes.sizes else rows

    def _outputs_of(self, returned: Any, count: int, rows: int) -> list[Any]:
        """Return an output for each of so many items, which were filled up to a number of rows."""
        outputs = checked(self._name, returned, rows, rows - count)
        return [
            self._returned_error(output) if isinstance(output, Exception) else output
            for output in islice(outputs, count)
        ]

    def _handle_error(self, error: Exception, run: _BatchRun, call: Call) -> Sequence[Outcome]:
        """Handle an error of a part of a batch, which may end the run of the rest, too."""
        part, bisection = call.part, run.bisection
        if is_out_of_memory(error):
            failure = self._note_out_of_memory(error, call, run.counts)
            if self._error_policy.isolate_failures and run.split(part):
                return ()
            run.counts.isolated += bisection.was_split and len(part) == 1
            return _all(failure, part)
        is_interrupt = isinstance(error, self._error_policy.interrupts)
        if is_interrupt or is_device_broken(error):
            left = bisection.abandon()
            if not is_interrupt:
                self.broken = str(error)
            if run.alone:
                return _all(error, range(part.start, part.stop + len(left)))
            is_cause = len(part) == 1 and not is_interrupt
            return _all(error, part) if is_cause else ()
        if self._may_isolate(error) and run.split(part):
            logger.info("%s raised %r on %d items: looking for the item that fails",
                        self._name, error, len(part))  # fmt: skip
            run.split_by = run.split_by or error.with_traceback(None)  # it may hold tensors
            return ()
        run.counts.isolated += bisection.was_split and len(part) == 1
        return _all(error, part)

    def _note_split(self, error: Exception, counts: Counts, size: int) -> None:
        """Count a batch whose items all succeeded in parts, and say so once in a while."""
        counts.split += 1
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_INTERVAL:
            self._warned_at = now
            logger.warning(
                "%s raised %r on a batch of %d items, which all succeeded in smaller parts, after"
                " %d calls in place of one: if their shapes differ, batch_by keeps these apart",
                self._name, error, size, counts.calls,
            )  # fmt: skip

    def _may_isolate(self, error: Exception) -> bool:
        """Return whether to look for the item that an error is about."""
        is_verdict = isinstance(error, (BatchError, *self._error_policy.verdicts))
        is_verdict = is_verdict and not isinstance(error, ItemTooLarge)  # of one row
        return self._error_policy.isolate_failures and not is_verdict

    def _late_outcomes(self, error: Exception, call: Call, counts: Counts) -> Sequence[Outcome]:
        """Handle an error of `uncollate`; return no outcomes if the items run again, each alone."""
        part, count = call.part, len(call.part)
        may_run_again = count > 1 and self._may_isolate(error)
        if is_out_of_memory(error):
            error = self._note_out_of_memory(error, call, counts)
        elif is_device_broken(error):
            self.broken = str(error)
        elif may_run_again:
            logger.info("%s.uncollate raised %r for %d items, which run again alone",
                        self._name, error, count)  # fmt: skip
        return () if may_run_again else _all(error, part)

    def _note_out_of_memory(self, error: Exception, call: Call, counts: Counts) -> OutOfMemory:
        """Free and learn what can be, and return the error of the call's items."""
        count = len(call.part)
        free_memory(error)
        counts.out_of_memory += 1
        has_smaller = self._limits_cost or call.size > most_rows(self._fixed_sizes.sizes, 1)
        if count > 1 and has_smaller:
            self.safe_size.did_not_fit(call.size)
            unit = "a cost of " if self._limits_cost else ""
            logger.warning(
                "%s ran out of memory with %d items: batches of up to %s%g from now on",
                self._name, count, unit, self.safe_size.largest,
            )  # fmt: skip
        return self._out_of_memory_error(error, count)

    def _out_of_memory_error(self, error: BaseException, size: int = 1) -> OutOfMemory:
        items = "one item alone does" if size == 1 else f"{size} items do"
        why = f": {error}" if str(error) else ""
        failure = OutOfMemory(f"{self._name}: {items} not fit into memory{why}")
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


def _put(outputs: list[Any], items: Sequence[int], found: Sequence[Any]) -> None:
    """Put the outputs of these items in their places."""
    if isinstance(items, range):
        outputs[items.start : items.stop] = found
        return
    for index, output in zip(items, found, strict=True):
        outputs[index] = output


def _all(error: Exception, part: range) -> list[Outcome]:
    return [Outcome(error=error, origin=error.__traceback__)] * len(part)
