"""The parameters of a model's `predict`, each a list with one entry per request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.runtime.model import Model

__all__ = ["call_with_columns", "example_rows", "signature_of"]

#: The signature of models that do not define `predict`, such as a streamer's function.
_ONE = inspect.Signature([inspect.Parameter("batch", inspect.Parameter.POSITIONAL_OR_KEYWORD)])


def signature_of(model: type[Model]) -> inspect.Signature:
    """Return the signature of a model's `predict`, without ``self``."""
    if model.predict is Model.predict:
        return _ONE
    found = inspect.getattr_static(model, "predict")
    # Bound to any object, it has no ``self``; a static method never had one.
    bound = found.__get__(object(), model) if hasattr(found, "__get__") else found
    return inspect.signature(bound)


def example_rows(model: type[Model], examples: Iterable[Any]) -> list[tuple[Any, ...]]:
    """
    Return a model's examples as rows, with one value for each parameter.

    Raises:
        ConfigurationError: An example does not fit the parameters.
    """
    signature = signature_of(model)
    if len(signature.parameters) == 1:
        return [(example,) for example in examples]
    return [_row(model, signature, example) for example in examples]


def _row(model: type[Model], signature: inspect.Signature, example: Any) -> tuple[Any, ...]:
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
            f"{model.__qualname__}.examples: {example!r} does not fit predict({names}): {error};"
            f" return one tuple of values for each example"
        ) from error
    bound.apply_defaults()
    return tuple(bound.arguments.values())


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
