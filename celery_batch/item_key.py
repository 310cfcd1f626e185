"""The keys of a batch task's items: only items with equal keys share a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from celery_batch.config import did_you_mean
from celery_batch.errors import ConfigurationError, InvalidKey
from celery_batch.interrupts import is_interrupt
from celery_batch.runtime.registry import key_option
from celery_batch.runtime.signature import (
    RowBinder,
    check_function,
    key_function,
    key_names,
    own_attribute,
)

__all__ = ["ItemKey", "item_key_of"]

#: Types of keys that need no check: hashable, and compared without code of a user.
_PLAIN = (str, int, bool, type(None))


class ItemKey:
    """
    Computes the keys of items.

    Args:
        name: The task's name in errors.
        signature: Of the batch function.
        batch_by: A function of one item's arguments, or the names of parameters.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        batch_by: Callable[..., Any] | str | Sequence[str],
    ) -> None:
        self._name = name
        self._binder = RowBinder(signature)
        #: The parameters that are the key; none if a function computes it.
        self._names = key_names(batch_by)
        self._function = key_function(batch_by, signature)

    def of_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Hashable:
        """
        Return the key of one call.

        Raises:
            InvalidKey: The function raised, or the key is not hashable.
            TypeError: The arguments do not fit the function's parameters.
        """
        if kwargs or len(args) != self._binder.width:
            args = self._binder.bind(args, kwargs)
        return self._of(args)

    def of_rows(self, columns: Sequence[Sequence[Any]]) -> Hashable:
        """
        Return the key that all rows of one request have.

        Raises:
            InvalidKey: The rows have different keys, or a row has none.
        """
        rows = zip(*columns, strict=True)
        key = self._of(next(rows))
        for n, row in enumerate(rows, start=2):
            if self._names:  # a chunk has one value for all of its rows
                break
            other = self._of(row)
            if other != key:
                raise InvalidKey(
                    f"{self._name}: row 1 has the key {key!r}, and row {n} has {other!r};"
                    f" send a chunk for each key"
                )
        return key

    def _of(self, row: Sequence[Any]) -> Hashable:
        try:
            key: Hashable = self._function(row)
        except BaseException as error:
            if is_interrupt(error):
                raise  # it is the whole batch's, or the worker's
            raise InvalidKey(
                f"{self._name}: its batch_by function raised {type(error).__name__}: {error}"
            ) from error
        if type(key) in _PLAIN:
            return key
        try:
            hash(key)
            bool(key == key)  # noqa: PLR0124 (a tensor's has no truth value)
        except BaseException as error:
            if is_interrupt(error):
                raise
            what = " and ".join(self._names) or "the key of an item"
            raise InvalidKey(
                f"{self._name}: {what} must be hashable to form batches by it: {error}"
            ) from error
        return key


def item_key_of(task: Any) -> ItemKey | None:
    """
    Return what computes the keys of a task's items; None if batches are not formed by key.

    Raises:
        ConfigurationError: The option is wrong.
    """
    batch_by = own_attribute(task if isinstance(task, type) else task.__class__, "batch_by")
    if batch_by is None and task.model is not None:
        batch_by = key_option(task.model)
    if batch_by is None:
        return None
    option, parameters = f"{task.name}.batch_by", [*task._batch_signature.parameters]
    names = key_names(batch_by)
    if not (callable(batch_by) or names):
        raise ConfigurationError(
            f"{option}: must be a function of an item's arguments, or names of parameters,"
            f" got {batch_by!r}"
        )
    if not names:
        check_function(option, batch_by, task._batch_signature)
    for name in names:
        if name not in parameters:
            raise ConfigurationError(
                f"{option}: must be a function of an item's arguments, or names of the parameters"
                f" {', '.join(parameters)}, got {name!r}{did_you_mean(name, parameters)}"
            )
    if set(names) == set(parameters):
        raise ConfigurationError(
            f"{option}: names all parameters, so that none is left with a list of rows;"
            f" give a function of an item's arguments"
        )
    return ItemKey(task.name, task._batch_signature, batch_by)
