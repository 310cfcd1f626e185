"""Runs a batch through a model, with an outcome for every item."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from celery_batch.batching.isolation import Bisection, SafeSize
from celery_batch.errors import BatchError, OutOfMemory, WrongResultCount
from celery_batch.runtime.failures import free_memory, is_device_broken, is_out_of_memory

__all__ = ["ErrorPolicy", "Outcome", "Runner", "Timing", "checked"]

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
        part: The items of the batch in this call.
        began: When, on the monotonic clock.
        seconds: How long it took.
    """

    part: range
    began: float
    seconds: float


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


class Runner:
    """
    Runs batches through a loaded model.

    Args:
        predict: Takes the batch's columns (one list per parameter, all of one
            length, one entry per item) and returns one output per item.
        name: The model's name in errors.
        error_policy: How its errors are handled.
        most: Most items in one call of the model; None for any number.
    """

    def __init__(
        self,
        predict: Callable[..., Any],
        name: str,
        error_policy: ErrorPolicy | None = None,
        *,
        most: int | None = None,
    ) -> None:
        self._predict = predict
        self._name = name
        self._error_policy = error_policy or ErrorPolicy()
        self._most = most or sys.maxsize
        #: What fits into memory, as far as this runner has found out.
        self.safe_size = SafeSize()
        #: How often the model was called.
        self.calls = 0
        #: Items that made their batch fail.
        self.isolated = 0
        #: Calls that ran out of memory.
        self.out_of_memory = 0
        #: The error of a broken device, after which this process must run no more batches.
        self.broken: str | None = None

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
        size = len(columns[0])
        outputs: list[Any] = [Outcome(again=True)] * size
        bisection = Bisection(size)
        while (part := bisection.next(self._largest)) is not None:
            began = time.monotonic()
            found = self._try(bisection, columns, part, alone=alone)
            if timings is not None:
                timings.append(Timing(part, began, time.monotonic() - began))
            outputs[part.start : part.start + len(found)] = found
        return outputs

    def limit(self, most: int) -> None:
        """Run at most this many items in one call from now on."""
        self._most = most

    def forget(self) -> None:
        """Forget what fits into memory: the model has been loaded again."""
        self.safe_size = SafeSize()

    @property
    def _largest(self) -> int:
        return min(self._most, self.safe_size.largest or sys.maxsize)

    def _try(
        self, bisection: Bisection, columns: Sequence[list[Any]], part: range, *, alone: bool
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
            return self._handle_error(error, bisection, part, alone=alone)
        self.safe_size.fitted(len(part))
        return outputs

    def _handle_error(
        self, error: Exception, bisection: Bisection, part: range, *, alone: bool
    ) -> Sequence[Outcome]:
        """Handle an error of a part of a batch, which may end the run of the rest, too."""
        if is_out_of_memory(error):
            return self._handle_out_of_memory(error, bisection, part)
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
        self, error: Exception, bisection: Bisection, part: range
    ) -> Sequence[Outcome]:
        free_memory(error)
        size = len(part)
        self.out_of_memory += 1
        if size > 1:
            self.safe_size.did_not_fit(size)
            logger.warning("%s ran out of memory with %d items: batches of up to %d from now on",
                           self._name, size, self.safe_size.largest)  # fmt: skip
            if self._error_policy.isolate_failures and bisection.split(part):
                return ()
        self.isolated += bisection.was_split and size == 1
        return _all(self._out_of_memory_error(error, size), part)

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
