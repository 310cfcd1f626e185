"""A batch through the model, an outcome for every item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from celery_batch.errors import WrongResultCount

__all__ = ["Outcome", "Runner"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What became of one item: a value, or the error that took its place.

    Args:
        value: The model's output for the item.
        error: Why there is none.
        origin: Where the model raised it, if it raised it.
    """

    value: Any = None
    error: Exception | None = None
    origin: TracebackType | None = None

    def unwrap(self) -> Any:
        """Return the value, or raise the error as the model raised it."""
        if self.error is None:
            return self.value
        # One error may belong to many items, and each raise makes its traceback longer.
        raise self.error.with_traceback(self.origin)


class Runner:
    """
    A model that is ready, from batch to outcomes.

    Args:
        predict: Takes the batch's columns (one list per parameter, all of one
            length, one entry per item) and returns one output per item.
        name: What to call the model in errors.
    """

    def __init__(self, predict: Callable[..., Any], name: str) -> None:
        self._predict = predict
        self._name = name

    def run(self, *columns: list[Any]) -> list[Outcome]:
        """
        Run one batch; never raises what the model raises.

        Args:
            columns: One list per parameter of the model, one entry per item.

        Returns:
            One outcome per item, in order.  Where the model raised, or returned
            anything but one output per item, each outcome holds that error.
        """
        size = len(columns[0])
        try:
            outputs = self._check(self._predict(*columns), size)
        except Exception as error:  # noqa: BLE001 (whatever a model raises is its items' outcome)
            return [Outcome(error=error, origin=error.__traceback__)] * size
        return [_outcome(output) for output in outputs]

    def _check(self, outputs: Any, size: int) -> Sequence[Any]:
        if hasattr(outputs, "tolist"):  # an array or a tensor, of whatever library
            outputs = outputs.tolist()
        if isinstance(outputs, (str, bytes, bytearray)) or not isinstance(outputs, Sequence):
            raise WrongResultCount(
                f"{self._name} returned {_describe(outputs)} for a batch of {size};"
                f" it must return a list with one output per input, in order"
            )
        if len(outputs) != size:
            raise WrongResultCount(
                f"{self._name} returned {len(outputs)} outputs for a batch of {size};"
                f" it must return one output per input, in order"
            )
        return outputs


def _outcome(output: Any) -> Outcome:
    return Outcome(error=output) if isinstance(output, Exception) else Outcome(value=output)


def _describe(outputs: Any) -> str:
    return "None" if outputs is None else f"a {type(outputs).__name__}"
