"""Explains the errors of outputs and items that a serializer cannot encode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial, wraps
from itertools import islice
from typing import Any

from celery.backends.base import DisabledBackend
from kombu.exceptions import EncodeError
from kombu.serialization import dumps

from celery_batch.serialization.arrays import is_array

__all__ = ["check_output", "explain_encode_errors", "explained_items"]

#: Types that every serializer encodes; NumPy's ``float64`` is a ``float`` with a ``tolist``, too.
_PLAIN = (str, bytes, int, float, bool, type(None))

#: What has values that a list can have instead.
_LISTABLE = (AbstractSet, Iterator, range)

#: Most values that are searched for one that cannot be encoded.
_MOST_VALUES = 10_000


def check_output(backend: Any, task: str, output: Any) -> None:
    """Raise `EncodeError` if a backend could not store a task's output; it names the value."""
    if isinstance(backend, DisabledBackend):  # a worker stores nothing either
        return
    try:
        backend.encode(backend.prepare_value(output))
    except EncodeError as error:
        raise _explained_output(error, backend, task, output) from error


def explain_encode_errors(backend: Any) -> None:
    """Make a result backend's errors name the task, and the value that it cannot encode."""
    if "mark_as_done" in vars(backend):
        return
    own = backend.mark_as_done

    @wraps(own)
    def mark_as_done(
        task_id: str, result: Any, request: Any = None, *args: Any, **options: Any
    ) -> Any:
        try:
            return own(task_id, result, request, *args, **options)
        except EncodeError as error:
            name = getattr(request, "task", None)
            raise _explained_output(error, backend, name, result) from error

    backend.mark_as_done = mark_as_done


def explained_items(error: EncodeError, task: str, serializer: str, items: Any) -> EncodeError:
    """Return an error that names the first value in the items of calls that cannot be encoded."""
    words = ("list of items", f"the serializer {serializer!r}", "send")
    return _explained(error, partial(dumps, serializer=serializer), task, items, words)


def _explained_output(
    error: EncodeError, backend: Any, task: str | None, output: Any
) -> EncodeError:
    words = ("output", f"the result serializer {backend.serializer!r}", "return")
    return _explained(error, backend.encode, task, output, words)


def _explained(
    error: EncodeError,
    encode: Callable[[Any], object],
    task: str | None,
    whole: Any,
    words: tuple[str, str, str],
) -> EncodeError:
    """Return an error that names the first value in `whole` that cannot be encoded."""
    what, serializer, verb = words
    head = f"{task}: " if task else ""
    for place, value in _values(whole):
        if why := _why_not(encode, value, verb):
            kind = type(value)
            module = kind.__module__.partition(".")[0]
            name = f"{'' if module == 'builtins' else f'{module}.'}{kind.__qualname__}"
            where = f" at {place}" if place else ""
            return EncodeError(
                f"{head}the {what} has a {name}{where}, which {serializer} cannot encode: {why}"
            )
    return EncodeError(f"{head}{serializer} cannot encode the {what}: {error}")


def _why_not(encode: Callable[[Any], object], value: Any, verb: str) -> str | None:
    """Return why a value, not what is in it, cannot be encoded; None if it may be."""
    if isinstance(value, (*_PLAIN, dict, list, tuple)):
        return None
    try:
        encode(value)
    except EncodeError as error:
        return str(error) if is_array(value) else f"{verb} {_instead_of(value, verb)}"
    return None


def _instead_of(value: Any, verb: str) -> str:
    is_error = isinstance(value, type) and issubclass(value, BaseException)
    if is_error and verb == "return":
        return f"an instance, such as {value.__name__}('...'), for an item that fails"
    if callable(getattr(value, "tolist", None)):
        return "its .tolist()"
    if isinstance(value, _LISTABLE):
        return "a list of its values"
    return "numbers, texts, lists or dicts of what is needed of it"


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
