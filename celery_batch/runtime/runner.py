"""Runs a batch through a model, with an outcome for every item."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple

from celery_batch.batching.call_plan import CallPlan
from celery_batch.batching.cost import CostLimits
from celery_batch.batching.isolation import Bisection, SafeSize
from celery_batch.errors import BatchError, OutOfMemory, WrongResultCount
from celery_batch.runtime.failures import free_memory, is_device_broken, is_out_of_memory

__all__ = ["CallCost", "Counts", "ErrorPolicy", "Outcome", "Runner", "Timing", "checked"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    The outcome of one item: a value, or an error.

    Args:
        value: The model's output for the item.
        error: Why there is none.
        origin: The traceback, if the model raised the error.
        again: There is neither: the run ended early, and the item is to run again alone.
        whole: The error of the whole chunk, if `error` is only one row's.
    """

    value: Any = None
    error: Exception | None = None
    origin: TracebackType | None = None
    again: bool = False
    whole: Exception | None = None

    def unwrap(self) -> Any:
        """Return the value, or raise the error as the model raised it."""
        if self.error is None:
            return self.value
        # One error may belong to many items, and each raise would make its traceback longer.
        raise self.error.with_traceback(self.origin)


@dataclass(frozen=True, slots=True)
class Timing:
    """
    When a model was called, and for how long.

    Args:
        part: The indexes of the items of the batch in this call.
        began: When, on the monotonic clock.
        seconds: How long it took.
    """

    part: Sequence[int]
    began: float
    seconds: float


class Counts(NamedTuple):
    """What a runner counts, see its attributes."""

    calls: int = 0
    isolated: int = 0
    out_of_memory: int = 0
    cost: float = 0.0
    padded_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """
    How a model's errors are handled.

    Args:
        isolate_failures: Find the items that make a batch fail, by calling the model
            again with parts of it; else all items fail.
        verdicts: Errors that the function raises for the whole batch.
        interrupts: Errors from outside that end the run.
    """

    isolate_failures: bool = True
    verdicts: tuple[type[Exception], ...] = ()
    interrupts: tuple[type[Exception], ...] = ()


@dataclass(frozen=True, slots=True)
class CallCost:
    """
    What items cost, and how much one call of the model may.

    Args:
        of_rows: Takes the batch's columns; returns the cost of each item, or its error.
        limits: The largest call.
    """

    of_rows: Callable[[Sequence[Sequence[Any]]], Sequence[float | Exception]]
    limits: CostLimits


class Runner:
    """
    Runs batches through a loaded model.

    Args:
        predict: Takes the batch's columns (one list per parameter, all of one
            length, one entry per item) and returns one output per item.
        name: The model's name in errors.
        error_policy: How its errors are handled.
        most: Most items in one call of the model; None for any number.
        cost: What items cost, where that is limited as well.
    """

    def __init__(
        self,
        predict: Callable[..., Any],
        name: str,
        error_policy: ErrorPolicy | None = None,
        *,
        most: int | None = None,
        cost: CallCost | None = None,
    ) -> None:
        self._predict = predict
        self._name = name
        self._error_policy = error_policy or ErrorPolicy()
        self._most = most or sys.maxsize
        self._cost = cost
        #: What fits into memory, as far as this runner has found out.
        self.safe_size = SafeSize()
        #: How often the model was called.
        self.calls = 0
        #: Items that made their batch fail.
        self.isolated = 0
        #: Calls that ran out of memory.
        self.out_of_memory = 0
        #: What the items of all calls have cost, where that is limited, and the calls with padding.
        self.cost = self.padded_cost = 0.0
        #: The error of a broken device, after which this process must run no more batches.
        self.broken: str | None = None

    @property
    def counts(self) -> Counts:
        """What has been counted until now."""
        isolated, out_of_memory = self.isolated, self.out_of_memory
        return Counts(self.calls, isolated, out_of_memory, self.cost, self.padded_cost)

    def run(self, *columns: list[Any], timings: list[Timing] | None = None) -> list[Outcome]:
        """
        Run one batch; never raises what the model raises.

        Args:
            columns: One list per parameter of the model, one entry per item.
            timings: The timing of each model call is appended to it.

        Returns:
            One outcome per item, in order.  A model that raises is called again
            with halves of the batch, until the items that make it raise run
            alone; the same if it runs out of memory.  If it did not return
            one output per item, each outcome has that error.
        """
        outputs = self.outputs(*columns, alone=len(columns[0]) == 1, timings=timings)
        return [
            output if isinstance(output, Outcome) else Outcome(value=output) for output in outputs
        ]

    def outputs(
        self, *columns: list[Any], alone: bool, timings: list[Timing] | None = None
    ) -> list[Any]:
        """
        Run one batch as `run` does, without an outcome around each output.

        Args:
            columns: One list per parameter of the model, one entry per item.
            alone: All items are one request: an error that ends the run is its error,
                since it would end the next run, too.
            timings: The timing of each model call is appended to it.

        Returns:
            One output per item, in order; an outcome in place of each that is missing.
        """
        outputs: list[Any] = [Outcome(again=True)] * len(columns[0])
        order: Sequence[int] = range(len(outputs))
        plan = None
        if self._cost is not None:
            plan = self._plan(self._cost, columns, outputs)
            order = plan.order
            columns = tuple([column[index] for index in order] for column in columns)
        bisection = Bisection(len(order))
        while (part := bisection.next(self._largest(plan, bisection.start))) is not None:
            began = time.monotonic()
            size: float = len(part)
            if plan is not None:
                self.cost += plan.sum(part)
                self.padded_cost += plan.cost(part)
                size = plan.cost(part) if self._limits_cost else size
            found = self._try(bisection, columns, part, size, alone=alone)
            if timings is not None:
                seconds = time.monotonic() - began
                timings.append(Timing(order[part.start : part.stop], began, seconds))
            # None if it runs again in halves; if the run has ended, the rest of the batch as well.
            items = order[part.start : part.start + len(found)]
            if isinstance(items, range):
                outputs[items.start : items.stop] = found
            else:
                for index, output in zip(items, found, strict=True):
                    outputs[index] = output
        return outputs

    def limit(self, most: int, cost: CostLimits | None = None) -> None:
        """Run at most this many items, of that cost, in one call from now on."""
        self._most = most
        if self._cost is not None:
            limits = cost or CostLimits(most, math.inf, is_padded=False)
            self._cost = replace(self._cost, limits=limits)

    def forget(self) -> None:
        """Forget what fits into memory: the model has been loaded again."""
        self.safe_size = SafeSize()

    def _plan(self, cost: CallCost, columns: Sequence[list[Any]], outputs: list[Any]) -> CallPlan:
        """Return in which calls a batch runs; put errors in the outputs of items without a cost."""
        costs = cost.of_rows(columns)
        for index, each in enumerate(costs):
            if isinstance(each, Exception):
                outputs[index] = Outcome(error=each)
        known = [None if isinstance(each, Exception) else each for each in costs]
        return CallPlan(known, cost.limits)

    def _largest(self, plan: CallPlan | None, start: int) -> int:
        """Return most items of the next call of the model."""
        safe = self.safe_size.largest or sys.maxsize
        if plan is None or self._cost is None:
            return min(self._most, int(safe))
        limits = self._cost.limits
        if self._limits_cost:
            return plan.count(start, replace(limits, cost=min(limits.cost, safe)))
        return plan.count(start, replace(limits, rows=min(limits.rows, int(safe))))

    @property
    def _limits_cost(self) -> bool:
        """Whether calls are limited by cost, so that what fits into memory is known in cost."""
        return self._cost is not None and self._cost.limits.cost < math.inf

    def _try(
        self,
        bisection: Bisection,
        columns: Sequence[list[Any]],
        part: range,
        size: float,
        *,
        alone: bool,
    ) -> Sequence[Any]:
        """Return an output for each item of the part; none if it runs again in halves."""
        cut = slice(part.start, part.stop)
        self.calls += 1
        try:
            returned = self._predict(*(column[cut] for column in columns))
            outputs = [
                self._returned_error(output) if isinstance(output, Exception) else output
                for output in checked(self._name, returned, len(part))
            ]
        except Exception as error:  # noqa: BLE001 (any error of a model is its items' outcome)
            return self._handle_error(error, bisection, part, size, alone=alone)
        self.safe_size.fitted(size)
        return outputs

    def _handle_error(
        self, error: Exception, bisection: Bisection, part: range, size: float, *, alone: bool
    ) -> Sequence[Outcome]:
        """Handle an error of a part of a batch, which may end the run of the rest, too."""
        if is_out_of_memory(error):
            return self._handle_out_of_memory(error, bisection, part, size)
        is_interrupt = isinstance(error, self._error_policy.interrupts)
        if is_interrupt or is_device_broken(error):
            left = bisection.abandon()
            if not is_interrupt:
                self.broken = str(error)
            if alone:
                return _all(error, range(part.start, part.stop + len(left)))
            is_cause = len(part) == 1 and not is_interrupt
            return _all(error, part) if is_cause else ()
        is_verdict = isinstance(error, (BatchError, *self._error_policy.verdicts))
        if self._error_policy.isolate_failures and not is_verdict and bisection.split(part):
            logger.info("%s raised %r on %d items: looking for the item that fails",
                        self._name, error, len(part))  # fmt: skip
            return ()
        self.isolated += bisection.was_split and len(part) == 1
        return _all(error, part)

    def _handle_out_of_memory(
        self, error: Exception, bisection: Bisection, part: range, size: float
    ) -> Sequence[Outcome]:
        free_memory(error)
        count = len(part)
        self.out_of_memory += 1
        if count > 1:
            self.safe_size.did_not_fit(size)
            unit = "a cost of " if self._limits_cost else ""
            logger.warning("%s ran out of memory with %d items: batches of up to %s%g from now on",
                           self._name, count, unit, self.safe_size.largest)  # fmt: skip
            if self._error_policy.isolate_failures and bisection.split(part):
                return ()
        self.isolated += bisection.was_split and count == 1
        return _all(self._out_of_memory_error(error, count), part)

    def _out_of_memory_error(self, error: BaseException, size: int = 1) -> OutOfMemory:
        items = "one item alone does" if size == 1 else f"{size} items do"
        failure = OutOfMemory(f"{self._name}: {items} not fit into memory: {error}")
        failure.__cause__ = error.with_traceback(None)
        return failure

    def _returned_error(self, error: Exception) -> Outcome:
        if isinstance(error, MemoryError):  # on which Celery ends the worker
            return Outcome(error=self._out_of_memory_error(error))
        return Outcome(error=error)


def checked(name: str, outputs: Any, size: int) -> Sequence[Any]:
    """
    Return a model's outputs as a sequence, one for each item.

    Args:
        name: The model's name in errors.
        outputs: What it returned: a sequence, an array or a tensor.
        size: How many items the batch had.

    Raises:
        WrongResultCount: They are anything else.
    """
    if hasattr(outputs, "tolist"):  # an array or a tensor, of whatever library
        outputs = outputs.tolist()
    if isinstance(outputs, (str, bytes, bytearray)) or not isinstance(outputs, Sequence):
        raise WrongResultCount(
            f"{name} returned {_describe(outputs)} for a batch of {size};"
            f" it must return a list with one output per input, in order"
        )
    if len(outputs) != size:
        raise WrongResultCount(
            f"{name} returned {len(outputs)} outputs for a batch of {size};"
            f" it must return one output per input, in order"
        )
    return outputs


def _all(error: Exception, part: range) -> list[Outcome]:
    return [Outcome(error=error, origin=error.__traceback__)] * len(part)


def _describe(outputs: Any) -> str:
    return "None" if outputs is None else f"a {type(outputs).__name__}"
