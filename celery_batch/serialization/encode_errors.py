"""Explains the errors of arguments, outputs and items that a serializer cannot encode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial, wraps
from itertools import islice
from typing import Any

from celery.backends.base import DisabledBackend
from kombu.exceptions import EncodeError
from kombu.serialization import dumps

from celery_batch.formatting import with_article
from celery_batch.serialization.arrays import is_array

__all__ = [
    "OutputTooLarge",
    "check_output",
    "explain_encode_errors",
    "explained_call",
    "explained_items",
]

#: Types that every serializer encodes; NumPy's ``float64`` is a ``float`` with a ``tolist``, too.
_PLAIN = (str, bytes, int, float, bool, type(None))

#: What has values that a list can have instead.
_LISTABLE = (AbstractSet, Iterator, range)

#: What the class of a value has -> what can be sent or returned in its place.
_INSTEAD = {
    "tolist": "its .tolist()",
    "model_dump": "its .model_dump()",  # Pydantic's
    "__dataclass_fields__": "dataclasses.asdict() of it",
    "__array__": "numpy.asarray() of it",
    "__array_interface__": "numpy.asarray() of it",  # Pillow's images
}

#: The serializers that encode arrays, as errors name them.
_OF_ARRAYS = ("'json'", "'batch-msgpack'")

#: Most values that are searched for one that cannot be encoded.
_MOST_VALUES = 10_000


class OutputTooLarge(EncodeError):
    """An output has more bytes of large values than are stored; it says so itself."""


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
        except OutputTooLarge as error:
            raise EncodeError(*error.args) from None
        except EncodeError as error:
            name = getattr(request, "task", None)
            raise _explained_output(error, backend, name, result) from error

    backend.mark_as_done = mark_as_done


def explained_call(
    error: EncodeError, task: Any, args: Any, kwargs: Any, serializer: str
) -> EncodeError:
    """Return an error that names the argument of a call that cannot be encoded."""
    encode, name = partial(dumps, serializer=serializer), f"the serializer {serializer!r}"
    of_call = getattr(task, "__header__", None)  # a task of a class has none
    signature = task._batch_signature if of_call is None else inspect.signature(of_call)
    names = [*signature.parameters, *range(len(args or ()))]
    for argument, value in [*zip(names, args or ()), *(kwargs or {}).items()]:  # noqa: B905
        try:
            encode(value)
        except EncodeError as why:
            what = f"argument {argument}"
            found = _explained(encode, task.name, value, (what, name, "send"))
            return found or EncodeError(f"{task.name}: {name} cannot encode the {what}: {why}")
    if task.app.conf.task_always_eager:  # the call was encoded, and the task itself has raised this
        return error
    return EncodeError(f"{task.name}: {name} cannot encode the call: {error}")


def explained_items(error: EncodeError, task: str, serializer: str, items: Any) -> EncodeError:
    """Return an error that names the first value in the items of calls that cannot be encoded."""
    words = ("list of items", f"the serializer {serializer!r}", "send")
    return _explained(partial(dumps, serializer=serializer), task, items, words) or error


def _explained_output(
    error: EncodeError, backend: Any, task: str | None, output: Any
) -> EncodeError:
    name = f"the result serializer {backend.serializer!r}"
    head = f"{task}: " if task else ""
    found = _explained(backend.encode, task, output, ("output", name, "return"))
    return found or EncodeError(f"{head}{name} cannot encode the output: {error}")


def _explained(
    encode: Callable[[Any], object], task: str | None, whole: Any, words: tuple[str, str, str]
) -> EncodeError | None:
    """Return an error that names the first value in `whole` that cannot be encoded, if any."""
    what, serializer, verb = words
    head = f"{task}: " if task else ""
    for place, value in _values(whole):
        if why := _why_not(encode, value, verb):
            if is_array(value) and not any(name in serializer for name in _OF_ARRAYS):
                why = f"{' and '.join(_OF_ARRAYS)} can"
            kind = type(value)
            module = kind.__module__.partition(".")[0]
            name = with_article(
                f"{'' if module == 'builtins' else f'{module}.'}{kind.__qualname__}"
            )
            where = f"has {name} at {place}" if place else f"is {name}"
            return EncodeError(f"{head}the {what} {where}, which {serializer} cannot encode: {why}")
    return None


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
    if isinstance(value, (bytearray, memoryview)):
        return "bytes() of it"
    if isinstance(value, Enum):
        return "its .value"
    if isinstance(value, _LISTABLE):
        return "a list of its values"
    found = (words for name, words in _INSTEAD.items() if hasattr(type(value), name))
    return next(found, "numbers, texts, lists or dicts of what is needed of it")


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
