"""The parameters of a model, each a list with one entry per request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.runtime.model import Model

__all__ = [
    "RowBinder",
    "call_error",
    "call_with_columns",
    "check_function",
    "collates",
    "example_rows",
    "key_function",
    "key_names",
    "own_attribute",
    "row_function",
    "row_of",
    "signature_of",
    "uncollates",
    "with_one_value",
]

#: How a function of an item's arguments is called.
_ALL_VALUES = "it gets the values of all these parameters"

#: The signature of models that do not define `predict`, such as a streamer's function.
_ONE = inspect.Signature([inspect.Parameter("batch", inspect.Parameter.POSITIONAL_OR_KEYWORD)])


def collates(model: type[Model]) -> bool:
    """Return whether a model defines `collate`, which then takes the columns of a call."""
    return model.collate is not Model.collate


def uncollates(model: type[Model]) -> bool:
    """Return whether a model defines `uncollate`."""
    return model.uncollate is not Model.uncollate


def signature_of(model: type[Model]) -> inspect.Signature:
    """Return the signature of a model's `collate`, else of its `predict`, without ``self``."""
    if model.predict is Model.predict and not collates(model):
        return _ONE
    found = inspect.getattr_static(model, "collate" if collates(model) else "predict")
    # Bound to any object, it has no ``self``; a static method never had one.
    bound = found.__get__(object(), model) if hasattr(found, "__get__") else found
    return inspect.signature(bound)


def example_rows(model: type[Model], examples: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return a model's examples as rows, with one value for each parameter."""
    name, signature = f"{model.__qualname__}.examples", signature_of(model)
    is_list = hasattr(examples, "__iter__") or hasattr(examples, "__getitem__")
    if isinstance(examples, (str, bytes, bytearray, Mapping)) or not is_list:
        raise ConfigurationError(f"{name}: must return a list of inputs, got {examples!r:.60}")
    return [row_of(name, signature, example) for example in examples]


def row_of(name: str, signature: inspect.Signature, example: Any) -> tuple[Any, ...]:
    """Return a value for each parameter: an example of one, or a tuple or mapping of several."""
    if len(signature.parameters) == 1:
        return (example,)
    try:
        if isinstance(example, Mapping):
            bound = signature.bind(**example)
        elif isinstance(example, (tuple, list)):
            bound = signature.bind(*example)
        else:
            bound = signature.bind(example)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise ConfigurationError(
            f"{name}: {example!r} does not fit the parameters ({names}): {error};"
            f" return one tuple of values for each example"
        ) from error
    bound.apply_defaults()
    return tuple(bound.arguments.values())


def key_names(batch_by: Any) -> tuple[str, ...]:
    """Return the parameters that ``batch_by`` names; none if it is a function, or is wrong."""
    names = (batch_by,) if isinstance(batch_by, str) else batch_by
    are_names = isinstance(names, (tuple, list)) and all(isinstance(each, str) for each in names)
    return tuple(dict.fromkeys(names)) if are_names else ()


def key_function(batch_by: Any, signature: inspect.Signature) -> Callable[[Sequence[Any]], Any]:
    """Return what takes a row, a value for each parameter, and returns its key."""
    if callable(batch_by):
        return row_function(batch_by, signature)
    parameters = [*signature.parameters]
    return itemgetter(*[parameters.index(name) for name in key_names(batch_by)])


def row_function(
    function: Callable[..., Any], signature: inspect.Signature
) -> Callable[[Sequence[Any]], Any]:
    """Return what takes a row, a value for each parameter, and calls a function with it."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        return partial(call_with_columns, function, signature)
    return partial(_call_with_row, function)  # no lambda: worker processes of streamers are sent it


def _call_with_row(function: Callable[..., Any], row: Sequence[Any]) -> Any:
    return function(*row)


class RowBinder:
    """Binds the arguments of calls, as ``signature.bind`` does at ten times the cost."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        parameters = signature.parameters.values()
        #: How many values a row has.
        self.width = len(parameters)
        self._defaults = [(each.name, each.default) for each in parameters]
        usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._is_usual = all(each.kind in usual for each in parameters)
        #: Most positional arguments.
        self._most = sum(each.kind is not each.KEYWORD_ONLY for each in parameters)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return a value for each parameter, in order; raise `TypeError` if they do not fit."""
        if not kwargs and len(args) == self.width:
            return args
        if self._is_usual and len(args) <= self._most:
            row, left = [*args], len(kwargs)
            for name, default in self._defaults[len(args) :]:
                if name in kwargs:
                    row.append(kwargs[name])
                    left -= 1
                elif default is inspect.Parameter.empty:
                    break
                else:
                    row.append(default)
            if not left and len(row) == self.width:
                return row
        bound = self._signature.bind(*args, **kwargs)  # which raises its own error
        bound.apply_defaults()
        return tuple(bound.arguments.values())


def call_error(name: str, signature: inspect.Signature, error: TypeError) -> TypeError:
    """Return the error of arguments that do not fit, with the task's name and its parameters."""
    takes = ", ".join(signature.parameters)
    return TypeError(f"{name}: {error}; it takes ({takes})")


def check_function(option: str, function: Any, signature: inspect.Signature) -> None:
    """Check that a function can be called with an item's arguments, if it has a signature."""
    try:
        takes = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        call_with_columns(takes.bind, signature, [*signature.parameters])
    except TypeError as error:
        first = next(iter(takes.parameters), "")
        hint = "make it a static method" if first in ("self", "cls") else _ALL_VALUES
        raise ConfigurationError(
            f"{option}: {getattr(function, '__qualname__', function)}{takes} must take what an"
            f" item has ({', '.join(signature.parameters)}): {error}; {hint}"
        ) from None


def own_attribute(thing: Any, name: str) -> Any:
    """Return an attribute of a class, or of an object's class, as it was written: no method."""
    found = inspect.getattr_static(thing if isinstance(thing, type) else thing.__class__, name)
    return getattr(found, "__func__", found)  # of a static method


def with_one_value(
    signature: inspect.Signature, names: Sequence[str], columns: Sequence[Any]
) -> Sequence[Any]:
    """Return columns with one value in place of a list for each of these parameters."""
    if not names:
        return columns
    return [
        column[0] if name in names else column
        for name, column in zip(signature.parameters, columns, strict=True)
    ]


def call_with_columns(
    function: Callable[..., Any], signature: inspect.Signature, columns: Sequence[Any]
) -> Any:
    """Call a function with a value for each parameter of a signature, in order."""
    by_name = {
        parameter.name: column
        for parameter, column in zip(signature.parameters.values(), columns, strict=True)
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return function(*columns[: len(columns) - len(by_name)], **by_name)
