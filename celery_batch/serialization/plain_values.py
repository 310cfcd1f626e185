"""
Encodes plain values, such as arguments and outputs, exactly and compactly.

Rule 1: a value is decoded to what it was, type for type: 1, 1.0 and True differ, so do 0.0 and
        -0.0, a list and a tuple.
Rule 2: equal values have equal bytes; dicts do whatever their order, if they are to be sorted.
Rule 3: only None, booleans, numbers, texts, bytes, arrays, tensors, and lists, tuples and dicts of
        these are encoded.  Of subclasses only those of float are: NumPy's float64 becomes a float.
Rule 4: what is decoded may come from anyone: it can make nothing but such values.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, calcsize, error, pack, unpack_from
from typing import Any

from celery_batch.serialization.arrays import EncodedArray, array_parts, is_array_type

__all__ = ["NotPlain", "decode_plain", "encode_plain"]

_COUNT, _INT, _FLOAT = Struct("<I"), Struct("<q"), Struct("<d")

_NONE, _FALSE, _TRUE = b"N", b"F", b"T"

#: Lists of one type of numbers are packed: the tag and the format of each number.
_PACKED = {int: (b"q", "q"), float: (b"e", "d")}
_FORMATS = {tag[0]: letter for tag, letter in _PACKED.values()}


class NotPlain(ValueError):
    """A value has a part that is not plain; or bytes are no encoded value."""


def encode_plain(value: Any, *, sort: bool = False) -> bytes:
    """Encode a value, else raise `NotPlain`; with `sort`, dicts with equal items to equal bytes."""
    parts: list[bytes] = []
    try:
        _write(value, parts.append, sort=sort)
    except (RecursionError, OverflowError, UnicodeEncodeError, error) as why:
        raise NotPlain(f"{type(why).__name__}: {why}") from None
    return b"".join(parts)


def decode_plain(data: bytes, start: int = 0) -> Any:
    """Decode a value of `encode_plain`; raise `NotPlain` for anything else, from anyone."""
    try:
        value, end = _read(data, start)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, error) as why:
        raise NotPlain(f"{type(why).__name__}: {why}") from None
    if end != len(data):
        raise NotPlain("there is more behind the value")
    return value


def _write(value: Any, add: Callable[[bytes], object], *, sort: bool) -> None:
    kind = type(value)
    if kind is str:
        _add_bytes(b"s", value.encode("utf-8", "surrogatepass"), add)
    elif kind is bytes:
        _add_bytes(b"b", value, add)
    elif kind is int:
        _write_int(value, add)
    elif value is None or kind is bool:
        add(_NONE if value is None else _TRUE if value else _FALSE)
    elif kind is list or kind is tuple:
        _write_sequence(value, kind, add, sort=sort)
    elif kind is dict:
        _write_dict(value, add, sort=sort)
    elif issubclass(kind, float):  # isinstance would run code of a class that has a __class__
        add(b"f" + _FLOAT.pack(value))
    elif is_array_type(kind):
        _write_array(value, add)
    else:
        raise NotPlain(f"a {kind.__module__}.{kind.__qualname__} is not plain")


def _add_bytes(tag: bytes, data: bytes, add: Callable[[bytes], object]) -> None:
    add(tag + _COUNT.pack(len(data)))
    add(data)


def _write_int(value: int, add: Callable[[bytes], object]) -> None:
    if -(1 << 63) <= value < 1 << 63:
        add(b"i" + _INT.pack(value))
    else:
        _add_bytes(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), add)


def _write_sequence(value: Any, kind: type, add: Callable[[bytes], object], *, sort: bool) -> None:
    kinds = set(map(type, value)) if kind is list else ()
    if len(kinds) == 1:
        packed = _pack(value, *kinds)
        if packed is not None:
            add(packed)
            return
    add((b"l" if kind is list else b"t") + _COUNT.pack(len(value)))
    for each in value:
        _write(each, add, sort=sort)


def _write_array(value: Any, add: Callable[[bytes], object]) -> None:
    try:
        kind, dtype, shape, data = array_parts(value)
    except TypeError as why:
        raise NotPlain(str(why)) from None
    _add_bytes(b"a", bytes(data), add)
    _write([kind, dtype, shape], add, sort=False)


def _pack(values: list[Any], kind: type) -> bytes | None:
    """Return a list of numbers of one type; None if it is another list, or one is too large."""
    if kind not in _PACKED:
        return None
    tag, letter = _PACKED[kind]
    try:
        return tag + _COUNT.pack(len(values)) + pack(f"<{len(values)}{letter}", *values)
    except error:
        return None


def _write_dict(value: dict[Any, Any], add: Callable[[bytes], object], *, sort: bool) -> None:
    add(b"d" + _COUNT.pack(len(value)))
    items = [(encode_plain(key, sort=sort), each) for key, each in value.items()]
    if sort:
        items.sort(key=lambda item: item[0])
    for key, each in items:
        add(key)
        _write(each, add, sort=sort)


def _read(data: bytes, at: int) -> tuple[Any, int]:
    tag, at = data[at], at + 1
    if tag in _SINGLE:
        return _SINGLE[tag], at
    if tag == ord("i"):
        return _INT.unpack_from(data, at)[0], at + _INT.size
    if tag == ord("f"):
        return _FLOAT.unpack_from(data, at)[0], at + _FLOAT.size
    (count,), at = _COUNT.unpack_from(data, at), at + _COUNT.size
    if tag in _FORMATS:
        form = f"<{count}{_FORMATS[tag]}"
        return list(unpack_from(form, data, at)), at + calcsize(form)
    return _READERS[tag](data, at, count)


_SINGLE = {_NONE[0]: None, _FALSE[0]: False, _TRUE[0]: True}


def _read_bytes(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    found = data[at : at + count]
    if len(found) < count:
        raise NotPlain("it ends early")
    return found, at + count


def _read_text(data: bytes, at: int, count: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at, count)
    return found.decode("utf-8", "surrogatepass"), at


def _read_int(data: bytes, at: int, count: int) -> tuple[int, int]:
    found, at = _read_bytes(data, at, count)
    return int.from_bytes(found, "little", signed=True), at


def _read_list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = _read(data, at)
        found.append(value)
    return found, at


def _read_tuple(data: bytes, at: int, count: int) -> tuple[tuple[Any, ...], int]:
    found, at = _read_list(data, at, count)
    return tuple(found), at


def _read_dict(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    found = {}
    for _ in range(count):
        key, at = _read(data, at)
        found[key], at = _read(data, at)
    return found, at


def _read_array(data: bytes, at: int, count: int) -> tuple[Any, int]:
    found, at = _read_bytes(data, at, count)
    (kind, dtype, shape), at = _read(data, at)
    return EncodedArray(kind, dtype, tuple(shape), found).decode(), at


_READERS: dict[int, Callable[[bytes, int, int], tuple[Any, int]]] = {
    ord("s"): _read_text,
    ord("b"): _read_bytes,
    ord("I"): _read_int,
    ord("a"): _read_array,
    ord("l"): _read_list,
    ord("t"): _read_tuple,
    ord("d"): _read_dict,
}
