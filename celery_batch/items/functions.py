"""What a user's functions say of the items of a batch task: their costs, and their keys."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_batch.compat.billiard import terminate_handler_fired
from celery_batch.config import is_above_zero, require
from celery_batch.errors import ConfigurationError, InvalidKey
from celery_batch.formatting import did_you_mean
from celery_batch.runtime import failures
from celery_batch.runtime.item_cost import ItemCost
from celery_batch.runtime.registry import key_option
from celery_batch.runtime.signature import (
    RowBinder,
    check_function,
    key_function,
    key_names,
    own_attribute,
    signature_of,
)
from celery_batch.serialization.arrays import EncodedArray
from celery_batch.serialization.typed_json import StoredValue

__all__ = [
    "ItemKey",
    "check_queue_cost",
    "check_sort_window",
    "is_interrupt",
    "item_cost_of",
    "item_key_of",
    "option_of",
    "warn_of_array",
]

logger = logging.getLogger(__name__)

#: The options of which `warn_of_array` has warned.
_warned: set[str] = set()

_OF_CELERY = (SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate)

_NOT_DECODED = (EncodedArray, StoredValue)

#: Types of keys that need no check: hashable, and compared without code of a user.
_PLAIN = (str, int, bool, type(None))


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error comes from outside the function in which it was raised."""
    # A time limit does, and what signal handlers raise.  Any other `SystemExit` is the function's:
    # it would end the worker, and its message the next one.
    if isinstance(error, _OF_CELERY) or failures.is_interrupt(error):
        return True
    return isinstance(error, SystemExit) and terminate_handler_fired()


def option_of(task: Any, name: str) -> Any:
    """Return a task's own attribute, else its model's, as it was written."""
    own = own_attribute(task, name)
    return own_attribute(task.model, name) if own is None and task.model is not None else own


def warn_of_array(option: str, error: BaseException, values: Sequence[Any]) -> None:
    """Warn once that an option's function fails where a value is given that is not decoded."""
    if option in _warned or not any(isinstance(each, _NOT_DECODED) for each in values):
        return
    _warned.add(option)
    text = (
        "%s: the function needs more than the worker's main process has (of an array dtype, shape,"
        " ndim, nbytes and len(), of stored bytes len()), and batches are formed without it: %s;"
        " give the task a parameter that holds what the function computes"
    )
    logger.warning(text, option, error)


def item_cost_of(task: Any) -> ItemCost | None:
    """Return what computes the cost of a task's items; None if it has no limit."""
    batch, largest = task.max_batch_cost, task.max_item_cost
    cost = option_of(task, "cost")
    limit = "max_item_cost" if batch is None else "max_batch_cost"
    if batch is None and largest is None and task.cost is None:
        return None
    is_valid = largest is None or is_above_zero(largest)
    require(is_valid, f"{task.name}.max_item_cost", "a number above 0", largest)
    if cost is None:
        raise ConfigurationError(
            f"{task.name}.{limit}: needs cost, a function of an item's arguments or the name of"
            f" the parameter whose length counts"
        )
    names = [*task._batch_signature.parameters]
    if (
        task.model is not None
        and len(names) == 1
        and cost in [*signature_of(task.model).parameters]
    ):
        cost = names[0]  # the task calls the only parameter of a model "item"
    if not callable(cost) and cost not in names:
        hint = did_you_mean(str(cost), names)
        raise ConfigurationError(
            f"{task.name}.cost: must be a function of an item's arguments, or one of the"
            f" parameters {', '.join(names)}, got {cost!r}{hint}"
        )
    if callable(cost):
        check_function(f"{task.name}.cost", cost, task._batch_signature)
    if batch is None and largest is None:
        raise ConfigurationError(f"{task.name}.cost: has no effect without max_batch_cost")
    return ItemCost(task.name, task._batch_signature, cost, largest, is_interrupt)


def check_sort_window(cls: Any) -> None:
    """Check that the option ``sort_window`` is given only where batches are chosen."""
    if "sort_window" in vars(cls) and not cls.padded and item_key_of(cls) is None:
        raise ConfigurationError(
            f"{cls.name}.sort_window: has no effect without padded=True or batch_by"
        )


def check_queue_cost(task: Any) -> None:
    """Check the option ``max_queue_cost``."""
    most = task.max_queue_cost
    if most is None:
        return
    name = f"{task.name}.max_queue_cost"
    require(is_above_zero(most), name, "a number above 0, or None", most)
    if item_cost_of(task) is None:
        raise ConfigurationError(
            f"{task.name}.max_queue_cost: needs cost, and max_batch_cost or max_item_cost"
        )


class ItemKey:
    """Computes the keys of items."""

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
        """Return the key of one call; raise `InvalidKey` or, for wrong arguments, `TypeError`."""
        return self._of(self._binder.bind(args, kwargs))

    def of_rows(self, columns: Sequence[Sequence[Any]]) -> Hashable:
        """Return the key that all rows of one request have; raise `InvalidKey` if they differ."""
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
    """Return what computes the keys of a task's items; None if batches are not formed by key."""
    batch_by = own_attribute(task, "batch_by")
    if batch_by is None and task.model is not None:
        batch_by = key_option(task.model)
    if batch_by is None:
        return None
    option, parameters = f"{task.name}.batch_by", [*task._batch_signature.parameters]
    names = key_names(batch_by)
    if not (callable(batch_by) or names):
        is_mixed = isinstance(batch_by, (tuple, list)) and any(map(callable, batch_by))
        hint = "; give one function, which may return a tuple" if is_mixed else ""
        raise ConfigurationError(
            f"{option}: must be a function of an item's arguments, or names of parameters,"
            f" got {batch_by!r}{hint}"
        )
    _refuse_double_names(option, batch_by)
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


def _refuse_double_names(option: str, batch_by: Any) -> None:
    for name in () if callable(batch_by) or isinstance(batch_by, str) else batch_by:
        if [*batch_by].count(name) > 1:
            raise ConfigurationError(f"{option}: names {name!r} twice, got {batch_by!r}")
