"""Explains the errors of outputs that a result backend cannot encode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from itertools import islice
from typing import Any

from celery.backends.base import DisabledBackend
from kombu.exceptions import EncodeError
from kombu.serialization import dumps

from celery_batch.serialization.arrays import is_array

__all__ = ["check_output", "explain_encode_errors"]

#: Types that every serializer encodes; NumPy's ``float64`` is a ``float`` with a ``tolist``, too.
_PLAIN = (str, bytes, int, float, bool, type(None))

#: Most values that are searched for an array.
_MOST_VALUES = 10_000


def check_output(backend: Any, output: Any) -> None:
    """Raise `EncodeError` if a backend could not store an output; it names an array."""
    if isinstance(backend, DisabledBackend):  # a worker stores nothing either
        return
    try:
        backend.encode(backend.prepare_value(output))
    except EncodeError as error:
        raise _explained(error, backend, output) from error


def explain_encode_errors(backend: Any) -> None:
    """Make a result backend's errors name an array that it cannot encode."""
    if "mark_as_done" in vars(backend):
        return
    own = backend.mark_as_done

    @wraps(own)
    def mark_as_done(task_id: str, result: Any, *args: Any, **options: Any) -> Any:
        try:
            return own(task_id, result, *args, **options)
        except EncodeError as error:
            raise _explained(error, backend, result) from error

    backend.mark_as_done = mark_as_done


def _explained(error: EncodeError, backend: Any, output: Any) -> EncodeError:
    """Return an error that names the first array in an output, or else the same error."""
    for place, value in _values(output):
        if why := _why_not(value):
            kind = type(value)
            name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
            where = f" at {place}" if place else ""
            return EncodeError(
                f"the output has a {name}{where}, which the result serializer"
                f" {backend.serializer!r} cannot encode: {why}"
            )
    return error


def _why_not(value: Any) -> str | None:
    """Return why a value, not what is in it, cannot be encoded; None if it may be."""
    if isinstance(value, _PLAIN) or not callable(getattr(value, "tolist", None)):
        return None
    try:
        dumps(value, serializer="json")
    except EncodeError as error:
        return str(error) if is_array(value) else "return its .tolist()"
    return None


def _values(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield an output and the values in it, each with its place, breadth first."""
    queue = [("", output)]
    for place, value in queue:
        yield place, value
        left = max(_MOST_VALUES - len(queue), 0)
        if isinstance(value, dict):
            queue += [(f"{place}[{key!r:.50}]", each) for key, each in islice(value.items(), left)]
        elif isinstance(value, (list, tuple)):
            queue += [(f"{place}[{number}]", each) for number, each in enumerate(value[:left])]
