"""A streamer's model as Celery's workers know models: a class that is made without arguments."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any

from kombu.utils.json import register_type

from celery_batch.serving.model import Model
from celery_batch.streamer.managed import as_model

__all__ = ["resident_class"]


def resident_class(
    given: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> type[Model]:
    """
    Return a `Model` class for what the user gave.

    Args:
        given: A predict function, a `ManagedModel` class or a `Model` class.
        args: As for `as_model`.
        kwargs: Likewise.

    Raises:
        ConfigurationError: It is none of these.
    """
    inner = as_model(given, args, kwargs)

    class Streamed(Model):
        """What a streamer's worker predicts with."""

        def load(self, device: str) -> None:
            inner.load(device)
            _teach_json_arrays()

        def examples(self) -> Sequence[Any]:
            return inner.examples()

        def predict(self, batch: list[Any]) -> Sequence[Any]:
            return inner.predict(batch)

        def unload(self) -> None:
            inner.unload()

    Streamed.__name__ = Streamed.__qualname__ = str(inner).removesuffix(".predict")
    return Streamed


#: What models like to return and JSON does not know.
_ARRAYS = (("numpy", "ndarray"), ("numpy", "generic"), ("torch", "Tensor"))


def _teach_json_arrays() -> None:
    """Have arrays and their numbers be answered as lists and numbers, in this process."""
    for module, name in _ARRAYS:
        if module in sys.modules:  # else the model has none of them
            register_type(getattr(sys.modules[module], name), None, methodcaller("tolist"))
