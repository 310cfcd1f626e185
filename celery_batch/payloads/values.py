"""
Large values that travel beside a message, in a store of their own.

The body of the message holds a `StoredValue` in the place of each; a header holds a
`PayloadReference` to their bytes, which lie in the store one behind the other.

Rule 1: a reference names no key.  The key is made of the task's id, so that no message leads to
        the payload of another task.
Rule 2: what a header says may come from anyone: it is checked, and so are the bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from os import urandom
from typing import Any, NamedTuple, Self

from celery_batch.errors import InvalidPayload
from celery_batch.serialization.arrays import array_parts, encoded_array, is_array, size_of
from celery_batch.serialization.binary import aligned
from celery_batch.serialization.decoding import decode_json
from celery_batch.serialization.lists import with_parts
from celery_batch.serialization.typed_json import StoredValue

__all__ = ["PayloadReference", "Payloads", "put_back", "take_out"]

#: Most values of one message.
_MOST_VALUES = 1000

_NONCE = re.compile("[0-9a-f]{16}")

#: Types without other values in them, which are never stored.
_SMALL = frozenset((int, float, bool, type(None), str))

BYTES, JSON = "bytes", "json"

#: Bytes of a value up to which its checksum is that of all of them; of a larger one so many pieces
#: of so many bytes, from the first to the last: all would take as long as to send them.
_CHECKED_WHOLE = 1 << 13
_PIECES, _PIECE = 12, 1 << 9


class PayloadReference(NamedTuple):
    """What a header says of the values that are stored beside a message."""

    nonce: str  # distinguishes the payloads of the tries of a task
    sizes: list[int]  # of each value, in bytes
    #: CRC-32 of the values, or of pieces of large ones, which tells other values and cut ones from
    #: those that were stored.
    checksum: int

    @classmethod
    def from_header(cls, header: Any) -> Self:
        """Return the reference in a header; raise `ValueError` for anything else."""
        try:
            nonce, sizes, checksum = header
        except (TypeError, ValueError):
            raise ValueError("a payload has a nonce, sizes and a checksum") from None
        if not (type(nonce) is str and _NONCE.fullmatch(nonce) and type(checksum) is int):
            raise ValueError("a payload has a nonce of 16 hexadecimal digits, and a checksum")
        is_list = isinstance(sizes, list) and 0 < len(sizes) <= _MOST_VALUES
        if not (is_list and all(type(size) is int and size >= 0 for size in sizes)):
            raise ValueError(f"a payload has from 1 to {_MOST_VALUES} sizes")
        return cls(nonce, sizes, checksum)

    @property
    def total(self) -> int:
        """The bytes of all values, as they are stored."""
        return sum(map(aligned, self.sizes[:-1])) + self.sizes[-1]

    def key(self, task_id: str) -> str:
        """Return the name of the payload in its store."""
        return f"{task_id}-{self.nonce}"

    def split(self, data: bytes | bytearray | memoryview | None) -> list[memoryview]:
        """Return the bytes of each value; raise `InvalidPayload` if they are missing or others."""
        if data is None:
            raise InvalidPayload(
                "the values that were stored beside the message are gone or elsewhere: the caller"
                " has another batch_payload_store, they have expired (batch_payload_expires), a"
                " Redis has evicted them, or this user may not read their file"
            )
        view = memoryview(data)
        starts = accumulate(map(aligned, self.sizes), initial=0)
        parts = [view[start : start + n] for start, n in zip(starts, self.sizes, strict=False)]
        if len(data) != self.total or _checksum(parts) != self.checksum:
            raise InvalidPayload(
                f"the values that were stored beside the message were changed:"
                f" {len(data)} bytes, {self.total} expected"
            )
        return parts


def _checksum(values: Iterable[Any]) -> int:
    checksum = 0
    for value in values:
        view = memoryview(value)
        if len(view) > _CHECKED_WHOLE:
            last = len(view) - _PIECE
            starts = [last * n // (_PIECES - 1) for n in range(_PIECES)]
            view = memoryview(b"".join([view[start : start + _PIECE] for start in starts]))
        checksum = zlib.crc32(view, checksum)
    return checksum


class Payloads:
    """The bytes of the values that were taken out of one message."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether it takes no more values."""
        return len(self) == _MOST_VALUES

    def add(self, data: Any) -> int:
        """Add the bytes of a value, and return its index."""
        self._values.append(data)
        return len(self) - 1

    @property
    def data(self) -> Any:
        """All bytes; of one value they are not copied."""
        *others, last = self._values
        if not others:
            return last
        padded = ((each, bytes(aligned(len(each)) - len(each))) for each in others)
        return b"".join((*chain.from_iterable(padded), last))

    def reference(self) -> PayloadReference:
        """Return a new reference to them."""
        sizes = list(map(len, self._values))
        return PayloadReference(urandom(8).hex(), sizes, _checksum(self._values))


def take_out(value: Any, least: int, payloads: Payloads, *, takes_bytes: bool) -> Any:
    """Return a value with large arrays, and perhaps bytes, moved to `payloads`; itself if none."""

    def taken(part: Any) -> Any:
        if type(part) is bytes:
            is_taken = takes_bytes and len(part) >= least and not payloads.is_full
            if not is_taken:
                return part
            return StoredValue(payloads.add(part), BYTES, shape=(len(part),))
        return _without_array(part, least, payloads) if is_array(part) else part

    return with_parts(value, taken)


def _without_array(value: Any, least: int, payloads: Payloads) -> Any:
    if size_of(value) < least or payloads.is_full:
        return value
    try:
        kind, dtype, shape, data = array_parts(value)
    except TypeError:  # it cannot be encoded, which the encoder says
        return value
    return StoredValue(payloads.add(data), kind, dtype, shape)


def put_back(value: Any, parts: Sequence[memoryview]) -> Any:
    """Put stored parts in their places in a value; raise `InvalidPayload` if they do not fit."""
    try:
        return _put_back(value, dict(enumerate(parts)))
    except RecursionError as error:
        raise InvalidPayload("the values are nested too deeply") from error


def _put_back(value: Any, left: dict[int, memoryview]) -> Any:
    kind = type(value)
    if kind is StoredValue:
        return _restored(value, left)
    if kind is tuple:
        return tuple(_put_back(each, left) for each in value)
    places: Any = ()
    if kind is dict:
        places = list(value.items())
    elif kind is list and not _SMALL.issuperset(map(type, value)):
        places = enumerate(value)
    for place, each in places:
        if type(each) not in _SMALL:
            value[place] = _put_back(each, left)
    return value


def _restored(value: StoredValue, left: dict[int, memoryview]) -> Any:
    data = left.pop(value.index, None)
    if data is None:
        raise InvalidPayload(f"there is no stored value {value.index}, or it is used twice")
    try:
        if value.kind == BYTES:
            return bytes(data)
        if value.kind == JSON:
            return _put_back(decode_json(str(data, "utf-8")), left)
        own = memoryview(bytearray(data))  # which its receiver may change, as it may a small one
        return encoded_array(value.kind, value.dtype, value.shape, own).decode()
    except ValueError as error:
        raise InvalidPayload(f"a stored value cannot be decoded: {error}") from error
