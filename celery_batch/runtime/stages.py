"""The stages of a model call: `collate`, `predict` and `uncollate`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.runtime.model import Model
from celery_batch.runtime.signature import (
    call_with_columns,
    collates,
    signature_of,
    uncollates,
    with_one_value,
)

__all__ = ["Stages", "check_stages", "has_stages", "stages_of"]


@dataclass(frozen=True, slots=True)
class Stages:
    """Calls a model with a column for each parameter; each stage may run on another thread."""

    predict: Callable[..., Any]
    collate: Callable[..., Any] | None = None
    uncollate: Callable[[Any], Any] | None = None

    def __call__(self, *columns: list[Any]) -> Any:
        """Call all stages, one after the other."""
        arguments = columns if self.collate is None else (self.collate(*columns),)
        return self.outputs(self.predict(*arguments))

    def outputs(self, output: Any) -> Any:
        """Return what `uncollate` makes of an output of `predict`."""
        return output if self.uncollate is None else self.uncollate(output)

    def followed_by(self, last: Callable[[Any], Any]) -> Stages:
        """Return these stages with one more at the end, which runs where `uncollate` does."""
        if self.uncollate is None:
            return Stages(lambda *given: last(self.predict(*given)), self.collate)
        return Stages(self.predict, self.collate, lambda output: last(self.outputs(output)))


def has_stages(model: type[Model]) -> bool:
    """Return whether a model has more stages than `predict`."""
    return collates(model) or uncollates(model)


def stages_of(model: type[Model], names: Sequence[str], instance: Callable[[], Model]) -> Stages:
    """Return the stages of a model."""
    signature = signature_of(model)

    def with_columns(method: str) -> Callable[..., Any]:
        def call(*columns: list[Any]) -> Any:
            values = with_one_value(signature, names, columns)
            return call_with_columns(getattr(instance(), method), signature, values)

        return call

    uncollate = (lambda output: instance().uncollate(output)) if uncollates(model) else None
    if not collates(model):
        return Stages(with_columns("predict"), None, uncollate)
    return Stages(lambda batch: instance().predict(batch), with_columns("collate"), uncollate)


def check_stages(model: type[Model]) -> None:
    """Check that each stage takes what the one before it returns."""
    taken = {"predict": "what collate returns"} if collates(model) else {}
    if uncollates(model):
        taken["uncollate"] = "what predict returns"
    for method, what in taken.items():
        found = inspect.getattr_static(model, method)
        bound = found.__get__(object(), model) if hasattr(found, "__get__") else found
        try:
            inspect.signature(bound).bind(None)
        except TypeError as error:
            raise ConfigurationError(
                f"{model.__qualname__}.{method}: gets {what}, as its one argument: {error}"
            ) from None
