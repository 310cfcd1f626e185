"""
JSON as kombu's, with arrays and tensors, and with every dict of the user as it was.

A message has a `StoredValue` in the place of a value that is stored beside it.

Kombu writes a value of a type of its own as ``{"__type__": ..., "__value__": ...}``, and reads
any such dict as one, though it may be the user's.  Such dicts are written here as a typed value
of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from operator import is_
from typing import Any, Self

from kombu.utils.json import JSONEncoder, register_type

from celery_batch.serialization import arrays
from celery_batch.serialization.arrays import (
    NDARRAY,
    PLAIN,
    TENSOR,
    array_text,
    encoded_array,
    itemsize_of,
)

__all__ = [
    "StoredValue",
    "array_as_typed",
    "array_hook",
    "encode_json",
    "encode_result",
    "escape_dicts",
    "register_decoders",
    "register_types",
]

_TYPED = {"__type__", "__value__"}

#: The type of the user's dicts that look like typed values.
_DICT = "dict"

#: How a key of such a dict begins in JSON; within a text the quotation mark is escaped.
_MARK = '"__type__": '


#: The result in meta data that have none; a state comes before it, and no other text.
_NO_RESULT = '"result": null'

_INTEGERS = frozenset((int,))

#: The type of stored values in kombu's JSON.
STORED = "batch-payload"


class StoredValue:
    """Stands for a value stored beside its message: an ndarray, a tensor, bytes or json."""

    __slots__ = ("dtype", "index", "kind", "shape")

    #: As arrays, since equal ones cannot be told here.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, index: int, kind: str, dtype: str = "", shape: Sequence[int] = ()) -> None:
        self.index, self.kind, self.dtype, self.shape = index, kind, dtype, tuple(shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements of an array; raise `ValueError` for another kind of value."""
        return prod(self.shape) * itemsize_of(self.kind, self.dtype)

    def __len__(self) -> int:
        """Return the length of its first dimension."""
        if not self.shape:
            raise TypeError(f"{self!r} has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        """Return kind, type and shape."""
        return f"{self.kind}({self.dtype}, {list(self.shape)})" if self.dtype else f"<{self.kind}>"

    def to_json(self) -> list[Any]:
        """Return it as kombu's JSON has it."""
        return [self.index, self.kind, self.dtype, [*self.shape]]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the value that `to_json` has written; raise `ValueError` for anything else."""
        try:
            index, kind, dtype, shape = value
            if type(kind) is str and type(dtype) is str and type(shape) is list:
                numbers = [index, *shape]
                if _INTEGERS.issuperset(map(type, numbers)) and min(numbers) >= 0:
                    return cls(index, kind, dtype, shape)
        except (TypeError, ValueError):
            pass
        raise ValueError("a stored value has an index, a kind, a dtype and a shape")


class _Encoder(JSONEncoder):
    """Kombu's, which would try all other types before."""

    def default(self, o: Any) -> Any:
        """Return what JSON has in the place of a value."""
        if type(o) is StoredValue:
            return {"__type__": STORED, "__value__": o.to_json()}
        return super().default(o)  # type: ignore[no-untyped-call]


_encode = _Encoder().encode


def _as_dict(items: Any) -> Any:
    try:
        return dict(items)
    except TypeError as error:
        raise ValueError(f"a dict has pairs of a text and a value: {error}") from None


def encode_json(value: Any) -> str:
    """Encode a value as kombu does; dicts that look like typed values stay what they are."""
    text = _encode(value)
    if _MARK in text and (escaped := escape_dicts(value)) is not value:
        return _encode(escaped)
    return text


def encode_result(meta: dict[str, Any]) -> str:
    """Encode a result's meta data as `encode_json`; an array takes a fraction of the time."""
    text = array_text(meta["result"])
    if text is None:
        return encode_json(meta)
    return encode_json({**meta, "result": None}).replace(_NO_RESULT, f'"result": {text}', 1)


def escape_dicts(value: Any) -> Any:
    """Return a value with such dicts as typed values; the same value if it has none."""
    if isinstance(value, dict):
        values = {
            key: each if type(each) in PLAIN else escape_dicts(each) for key, each in value.items()
        }
        if value.keys() == _TYPED:
            return {"__type__": _DICT, "__value__": list(values.items())}
        return value if all(map(is_, values.values(), value.values())) else values
    if isinstance(value, (list, tuple)):
        escaped = [each if type(each) in PLAIN else escape_dicts(each) for each in value]
        return value if all(map(is_, escaped, value)) else escaped
    return value


def array_hook(found: dict[str, Any]) -> Any:
    """Return an object of JSON with arrays undecoded, the user's dicts as they were."""
    if found.keys() != _TYPED:
        return found
    kind, value = found["__type__"], found["__value__"]
    try:
        if kind == _DICT:
            return _as_dict(value)
        return encoded_array(kind, *value) if kind in (NDARRAY, TENSOR) else found
    except (TypeError, ValueError):  # it only looks like one
        return found


def array_as_typed(array: Any) -> Any:
    """Return an array or a tensor as a typed value, a dict that JSON has."""
    return json.loads(_encode(array))


def register_types() -> None:
    """Have kombu's JSON decode what is encoded here, and arrays everywhere, in this process."""
    register_decoders()
    arrays.register_encoders()


def register_decoders() -> None:
    """Have kombu's JSON decode what other processes encode; how this one encodes is its own."""
    arrays.register_decoders()
    arrays.register_decoder(_DICT, _as_dict)
    register_type(StoredValue, STORED, StoredValue.to_json, StoredValue.from_json)
