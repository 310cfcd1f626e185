"""Computes what items cost, such as their numbers of tokens."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from math import inf, nan
from numbers import Real
from typing import Any

from celery_batch.errors import InvalidCost, ItemTooLarge
from celery_batch.runtime.failures import is_interrupt
from celery_batch.runtime.signature import RowBinder, row_function

__all__ = ["ItemCost"]

#: The types of nearly all costs.
_NUMBERS = (int, float)


class ItemCost:
    """Computes what items cost, by a function of them or as the length of the named parameter."""

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        cost: Callable[..., Any] | str,
        largest: float | None = None,
        is_interrupt: Callable[[BaseException], bool] = is_interrupt,
    ) -> None:
        self._name = name
        self._binder = RowBinder(signature)
        self._largest = inf if largest is None else largest
        #: The highest cost of which nothing has to be looked at.
        self._most = min(self._largest, sys.float_info.max)
        self._is_interrupt = is_interrupt
        #: Takes a row.
        self._function: Callable[[Sequence[Any]], Any]
        #: The parameter whose length it is; empty if a function computes it.
        self._parameter = cost if isinstance(cost, str) else ""
        if isinstance(cost, str):
            column = [*signature.parameters].index(cost)
            self._function = lambda row: len(row[column])
        else:
            self._function = row_function(cost, signature)

    def of_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> float:
        """Return the cost of one call; raise `InvalidCost` or `ItemTooLarge` if it has none."""
        return self._of(self._binder.bind(args, kwargs))

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
            found = self._function(row)
            if type(found) in _NUMBERS and 0 <= found <= self._most:  # as nearly always
                return float(found)
            cost = float(found) if isinstance(found, Real) else nan
        except BaseException as error:
            if self._is_interrupt(error):
                raise  # it is the whole batch's, or the worker's
            raise InvalidCost(f"{self._name}: {self._why_none(error)}") from error
        if not 0 <= cost < inf:
            raise InvalidCost(
                f"{self._name}: the cost of an item must be a number from 0 up, got {found!r}"
            )
        if cost > self._largest:
            raise ItemTooLarge(
                f"{self._name}: this item costs {cost:g}, and at most {self._largest:g} is"
                f" allowed (max_item_cost)"
            )
        return cost

    def _why_none(self, error: BaseException) -> str:
        """Return why an item has no cost, in words."""
        if self._parameter and isinstance(error, TypeError):
            return (
                f"the value of {self._parameter!r}, whose length is the cost, has no length:"
                f" {error}; if the value is the cost, give a function that returns it"
            )
        return f"its cost function raised {type(error).__name__}: {error}"
