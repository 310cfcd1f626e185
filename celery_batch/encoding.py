"""Outputs that a result backend cannot store, and what to return in their place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from itertools import islice
from typing import Any

from celery.backends.base import DisabledBackend
from kombu.exceptions import EncodeError

__all__ = ["check_output", "explain_encode_errors"]

#: What every serializer takes; NumPy's ``float64`` is a ``float``, and has a ``tolist`` too.
_PLAIN = (str, bytes, int, float, bool, type(None))

#: Values that are looked through for an array.
_MOST_VALUES = 10_000


def check_output(backend: Any, output: Any) -> None:
    """
    Check that a result backend could store an output.

    Args:
        backend: Of the task; nothing is stored.
        output: What the task has returned.

    Raises:
        EncodeError: It could not; an array is named, with what to return in its place.
    """
    if isinstance(backend, DisabledBackend):  # a worker stores nothing either
        return
    try:
        backend.encode(backend.prepare_value(output))
    except EncodeError as error:
        raise _explained(error, backend, output) from error


def explain_encode_errors(backend: Any) -> None:
    """
    Have a result backend say of an array that it cannot store what to return in its place.

    Args:
        backend: Any of Celery's; its own `mark_as_done` is called as before.
    """
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
    """Return an error that names the first array in an output; the same error if there is none."""
    for place, value in _values(output):
        if not isinstance(value, _PLAIN) and callable(getattr(value, "tolist", None)):
            kind = type(value)
            name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
            where = f" at {place}" if place else ""
            return EncodeError(
                f"the output has a {name}{where}, which the result serializer"
                f" {backend.serializer!r} cannot encode: return its .tolist()"
            )
    return error


def _values(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield an output and the values in it, each with its place, the first ones first."""
    line = [("", output)]
    for place, value in line:
        yield place, value
        left = max(_MOST_VALUES - len(line), 0)
        if isinstance(value, dict):
            line += [(f"{place}[{key!r:.50}]", each) for key, each in islice(value.items(), left)]
        elif isinstance(value, (list, tuple)):
            line += [(f"{place}[{number}]", each) for number, each in enumerate(value[:left])]
