"""Computes what items cost, such as their numbers of tokens."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from celery_batch.errors import InvalidCost, ItemTooLarge
from celery_batch.runtime.failures import is_interrupt
from celery_batch.runtime.signature import call_with_columns

__all__ = ["ItemCost"]


class ItemCost:
    """
    Computes what items cost.

    Args:
        name: The task's name in errors.
        signature: Of the batch function.
        cost: A function of one item's arguments, or the name of the parameter whose length it is.
        largest: The highest cost of one item; None for any.
        is_interrupt: Whether an error comes from outside, and is not the function's.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        cost: Callable[..., Any] | str,
        largest: float | None = None,
        is_interrupt: Callable[[BaseException], bool] = is_interrupt,
    ) -> None:
        self._name = name
        self._signature = signature
        self._parameters = len(signature.parameters)
        self._largest = largest
        self._is_interrupt = is_interrupt
        self._function: Callable[..., Any] = len if isinstance(cost, str) else cost
        #: The column whose length counts; None if the function takes all of them.
        self._column = [*signature.parameters].index(cost) if isinstance(cost, str) else None

    def of_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> float:
        """
        Return the cost of one call.

        Raises:
            InvalidCost: The function raised, or returned no number.
            ItemTooLarge: It is higher than that of any item may be.
            TypeError: The arguments do not fit the function's parameters.
        """
        if kwargs or len(args) != self._parameters:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args = tuple(bound.arguments.values())
        return self._of(args)

    def of_rows(self, columns: Sequence[Sequence[Any]]) -> list[float | InvalidCost | ItemTooLarge]:
        """Return the cost of each row, or the error of a row that has none."""
        return [self._cost_or_error(row) for row in zip(*columns, strict=True)]

    def _cost_or_error(self, row: Sequence[Any]) -> float | InvalidCost | ItemTooLarge:
        try:
            return self._of(row)
        except (InvalidCost, ItemTooLarge) as error:
            return error

    def _of(self, row: Sequence[Any]) -> float:
        try:
            if self._column is None:
                found = call_with_columns(self._function, self._signature, row)
            else:
                found = self._function(row[self._column])
            is_number = type(found) is int or isinstance(found, Real)  # as nearly always
            cost = float(found) if is_number else math.nan
        except BaseException as error:
            if self._is_interrupt(error):
                raise  # it is the whole batch's, or the worker's
            raise InvalidCost(
                f"{self._name}: its cost function raised {type(error).__name__}: {error}"
            ) from error
        if not 0 <= cost < math.inf:
            raise InvalidCost(
                f"{self._name}: the cost of an item must be a number from 0 up, got {found!r}"
            )
        if self._largest is not None and cost > self._largest:
            raise ItemTooLarge(
                f"{self._name}: this item costs {cost:g}, and max_item_cost is {self._largest:g};"
                f" send a smaller one, or raise max_item_cost"
            )
        return cost
