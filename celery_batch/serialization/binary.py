"""
The serializer ``batch-msgpack``: MessagePack, with the bytes of arrays behind it.

Base64 is a third longer than the bytes, and costs a copy more in each direction.  Here the bytes
of arrays are copied once to be encoded, and not at all to be decoded:

===========  ============================================================================
4 bytes      the length of the packed part, little-endian
packed part  the value; an array in it is an extension with dtype, shape, offset and size
the bytes    of each array, at an offset that is a multiple of 16
===========  ============================================================================

Rule 1: what kombu's JSON encodes is encoded here, too: other types by what is registered with
        kombu, as an extension with the type's name and value.
Rule 2: what is decoded may come from anyone: offsets and sizes are checked, and no object is
        unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from struct import Struct
from typing import Any

from kombu.utils.json import JSONEncoder, object_hook

from celery_batch.serialization.arrays import (
    NDARRAY,
    TENSOR,
    EncodedArray,
    array_parts,
    encoded_array,
    is_array,
)

__all__ = ["CONTENT_TYPE", "aligned", "decode_binary", "encode_binary"]

#: Of the serializer, and of its messages.
NAME, CONTENT_TYPE = "batch-msgpack", "application/x-batch-msgpack"

_LENGTH = Struct("<I")

#: The elements of no dtype need more.
_ALIGNMENT = 16

#: How deep values of registered types may be nested in each other: each level takes C stack.
_LEVELS = 8

#: What MessagePack packs by itself.
_PACKED = (str, bytes, int, float, bool, type(None), list, tuple, dict)

#: MessagePack's codes of our extensions.
_CODES = {NDARRAY: 1, TENSOR: 2}
_KINDS = {code: kind for kind, code in _CODES.items()}
_TYPED = 3

_typed_value: Callable[[Any], Any] = JSONEncoder().default


def encode_binary(value: Any) -> bytes:
    """Encode plain values and arrays; else raise `TypeError`, `ValueError` or `OverflowError`."""
    packer = _Packer(_msgpack())
    packed = packer.packed(value)
    end = _LENGTH.size + len(packed)
    behind = (bytes(aligned(end) - end), *packer.buffers) if packer.buffers else ()
    return b"".join((_LENGTH.pack(len(packed)), packed, *behind))


class _Packer:
    """Packs a value, and keeps the bytes of its arrays."""

    def __init__(self, msgpack: Any) -> None:
        self._msgpack = msgpack
        self._end = self._level = 0
        #: The bytes of the arrays, and what aligns them.
        self.buffers: list[Any] = []

    def packed(self, value: Any) -> bytes:
        found: bytes = self._msgpack.packb(value, default=self._extension)
        return found

    def _extension(self, part: Any) -> Any:
        if is_array(part):
            return self._array(part)
        if isinstance(part, int):
            raise OverflowError(f"{NAME}: integers have at most 64 bits")
        if self._level == _LEVELS:
            raise ValueError(f"{NAME}: typed values are nested more than {_LEVELS} times")
        self._level += 1
        try:
            return self._typed(_typed_value(part))
        finally:
            self._level -= 1

    def _array(self, array: Any) -> Any:
        kind, dtype, shape, data = array_parts(array)
        start, view = aligned(self._end), memoryview(data)
        self.buffers += (bytes(start - self._end), view)
        self._end = start + view.nbytes
        parts = self._msgpack.packb((dtype, shape, start, view.nbytes))
        return self._msgpack.ExtType(_CODES[kind], parts)

    def _typed(self, found: Any) -> Any:
        """Return what a type that is registered with kombu has made of a value."""
        if isinstance(found, dict) and found.keys() == {"__type__", "__value__"}:
            pair = found["__type__"], found["__value__"]
            return self._msgpack.ExtType(_TYPED, self.packed(pair))
        return found if isinstance(found, _PACKED) else self._extension(found)


def decode_binary(data: Any, decode: Callable[[EncodedArray], Any] = EncodedArray.decode) -> Any:
    """Decode what `encode_binary` has encoded, arrays with `decode`; else raise `ValueError`."""
    msgpack = _msgpack()
    view = memoryview(data).toreadonly()  # which arrays are views of; tensors are copies
    if len(view) < _LENGTH.size:
        raise ValueError(f"{NAME}: {len(view)} bytes are no message")
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    if end > len(view):
        raise ValueError(f"{NAME}: the message is cut at {len(view)} of {end} bytes or more")
    buffers = view[aligned(end) :]
    left, level = len(buffers), 0

    def unpack(code: int, part: bytes) -> Any:
        nonlocal left, level
        if code in _KINDS:
            array = _array(_KINDS[code], msgpack.unpackb(part), buffers)
            left -= array.nbytes
            if left < 0:
                raise ValueError(f"{NAME}: the arrays are larger than the message")
            return decode(array)
        if code != _TYPED or level == _LEVELS:
            raise ValueError(f"{NAME}: there is no extension {code}, or it is nested too deeply")
        level += 1
        try:
            return _from_typed(msgpack.unpackb(part, ext_hook=unpack, strict_map_key=False))
        finally:
            level -= 1

    try:
        return msgpack.unpackb(view[_LENGTH.size : end], ext_hook=unpack, strict_map_key=False)
    except (msgpack.UnpackException, TypeError) as error:  # a list as a key of a dict
        raise ValueError(f"{NAME}: {error or type(error).__name__}") from error


def _from_typed(pair: Any) -> Any:
    match pair:
        case [kind, value]:
            return object_hook({"__type__": kind, "__value__": value})
    raise ValueError(f"{NAME}: a typed value is a pair of a type and a value")


def _array(kind: str, parts: Any, buffers: memoryview) -> EncodedArray:
    """Return an array of what follows the packed part; raise `ValueError` for a wrong place."""
    try:
        dtype, shape, start, size = parts
    except (TypeError, ValueError):
        raise ValueError(f"{NAME}: a {kind} has a dtype, a shape, an offset and a size") from None
    if not all(type(number) is int and number >= 0 for number in (start, size)):
        raise ValueError(f"{NAME}: offset and size of a {kind} are 0 or more")
    return encoded_array(kind, dtype, shape, buffers[start : start + size])


def aligned(offset: int) -> int:
    """Return the next offset at which the elements of an array may begin."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _msgpack() -> Any:
    try:
        return import_module("msgpack")
    except ImportError:
        raise ImportError(
            f"the serializer {NAME} needs the package msgpack: pip install 'celery-batch[msgpack]'"
        ) from None
