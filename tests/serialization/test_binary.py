"""The serializer batch-msgpack: what it copies, keeps and refuses."""

from __future__ import annotations

import copy
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import DecodeError, EncodeError
from kombu.serialization import dumps, loads
from kombu.utils.json import register_type

from celery_batch.serialization.arrays import EncodedArray
from celery_batch.serialization.binary import decode_binary, encode_binary

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
    | st.datetimes()
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.text(max_size=3), each, max_size=3)
        | st.fixed_dictionaries({"__type__": each, "__value__": each})
    ),
    max_leaves=10,
)


def refusal(data: bytes) -> str:
    """Return why kombu refuses a message."""
    with pytest.raises(DecodeError) as refused:
        loads(data, "application/x-batch-msgpack", "binary")
    return str(refused.value)


@given(PLAIN)
def test_plain_values_come_back(value):
    """Also dates, UUIDs and decimals, and dicts that look like kombu's typed values."""
    assert value == decode_binary(encode_binary(value))


def test_types_that_are_registered_with_kombu():
    """A type that the user has taught kombu's JSON goes through, with arrays in it."""

    class Point:
        def __init__(self, parts: Any) -> None:
            self.parts = parts

    register_type(Point, "point", lambda point: point.parts, Point)
    found = decode_binary(encode_binary([Point([1, np.ones(2)])]))[0]

    assert isinstance(found, Point)
    assert [1, [1, 1]] == [found.parts[0], found.parts[1].tolist()]
    values = [
        date(2026, 2, 3),
        time(4, 5),
        datetime(2026, 1, 1, tzinfo=UTC),
        Decimal(1),
        UUID(int=3),
    ]
    assert values == decode_binary(encode_binary(values))


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**64, [object()]])
def test_other_values_are_refused(value):
    """As by kombu's JSON, with an error of kombu's."""
    with pytest.raises(EncodeError):
        dumps(value, "batch-msgpack")


def peak(call: Any) -> int:
    """Return the most bytes that a call has taken at once, the least of some calls' most."""
    peaks = []
    for _ in range(5):  # what other threads take meanwhile is counted, too
        tracemalloc.start()
        try:
            call()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize("array", [np.ones(10**6, "f4"), torch.ones(10**6)], ids=["numpy", "torch"])
def test_arrays_are_copied_once_to_be_encoded(array):
    """The memory that it takes is that of the message."""
    assert 4 * 10**6 <= peak(lambda: encode_binary([array, 1])) <= 1.01 * 4 * 10**6


def test_arrays_are_decoded_without_a_copy():
    """They are views of the message, aligned, which cannot be changed."""
    message = encode_binary([np.ones(10**6, "f4"), np.array([True]), np.arange(3, dtype="c16")])

    assert peak(lambda: decode_binary(message)) < 10_000
    large, _, small = decode_binary(message)
    assert large.flags.aligned
    assert small.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        large += 1


def test_tensors_are_copies():
    """Torch has none that cannot be changed."""
    message = encode_binary(torch.zeros(3))
    found = decode_binary(message)
    found += 1

    assert [0, 0, 0] == decode_binary(message).tolist()


def test_arrays_can_be_left_undecoded():
    """Functions of a worker's main process see dtype, shape and length."""
    value = {"a": np.ones((2, 3), "f4"), "t": torch.ones(4)}
    found = decode_binary(encode_binary(value), lambda array: array)

    assert isinstance(found["a"], EncodedArray)
    assert ("<f4", (2, 3), 2) == (found["a"].dtype, found["a"].shape, len(found["a"]))
    assert [1, 1, 1, 1] == list(found["t"])
    again = decode_binary(encode_binary(found))
    assert value["a"].tolist() == again["a"].tolist()
    assert torch.equal(value["t"], again["t"])


def framed(value: Any, after: bytes = b"") -> bytes:
    """Return a message with this packed part."""
    packed = msgpack.packb(value)
    return struct.pack("<I", len(packed)) + packed + bytes(-(4 + len(packed)) % 16) + after


def array(*parts: Any, code: int = 1) -> msgpack.ExtType:
    """Return an extension that claims to be an array."""
    return msgpack.ExtType(code, msgpack.packb(parts))


def test_what_a_forged_array_would_be():
    """The frame that the next test changes is a right one."""
    assert [1, 1] == decode_binary(
        framed(array("<f4", [2], 0, 8), np.ones(2, "f4").tobytes())
    ).tolist()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\xc1",
        struct.pack("<I", 3) + b"\x00",
        struct.pack("<I", 2) + b"\x00\x00",
        framed({(): 1}),
        framed(array("<f4", [2], 0)),
        framed(array("<f4", [2], 0, 8)),
        framed(array("<f4", [2], 16, 8), bytes(8)),
        framed(array("<f4", [2], -8, 8), bytes(8)),
        framed(array("<f4", [2], 0.0, 8), bytes(8)),
        framed(array("<f4", [2], 0, 4), bytes(8)),
        framed(array("<f4", [10**18], 0, 8), bytes(8)),
        framed(array("|O8", [1], 0, 8), bytes(8)),
        framed(array("<f4", 2, 0, 8), bytes(8)),
        framed(array(None, [2], 0, 8), bytes(8)),
        framed(array("<f4", [2], 0, 8, code=9), bytes(8)),
        framed(msgpack.ExtType(1, b"")),
        framed(msgpack.ExtType(2, b"\xc1")),
        framed(msgpack.ExtType(3, b"\x01")),
        framed(array("no such type", 1, code=3)),
        framed(array("decimal", [], code=3)),
        framed(array([], [], code=3)),
    ],
)
def test_forged_messages_are_refused(data):
    """Nothing beyond the message is read, and no object is unpickled."""
    assert refusal(data)


def test_nested_types_are_refused_before_they_use_up_the_stack():
    """A message of a kilobyte could end the process; a value that deep is not encoded either."""
    nested = msgpack.ExtType(3, msgpack.packb(["decimal", "1"]))
    for _ in range(300):
        nested = msgpack.ExtType(3, msgpack.packb(["decimal", nested]))
    assert refusal(framed(nested))

    class Deep:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    register_type(Deep, "deep", lambda deep: deep.inner, Deep)
    value: Any = 1
    for _ in range(300):
        value = Deep(value)
    with pytest.raises(EncodeError, match="nested more than 8 times"):
        dumps(value, "batch-msgpack")


def test_arrays_that_share_their_bytes_are_refused():
    """A small message could become many large tensors."""
    assert refusal(framed([array("<f4", [2], 0, 8)] * 3, bytes(16)))


def test_types_that_become_other_types():
    """As in JSON, what a type is encoded to may be of a registered type itself."""

    class Price:
        def __json__(self) -> Any:
            return Decimal(3)

    assert [Decimal(3)] == decode_binary(encode_binary([Price()]))
    with pytest.raises(EncodeError, match="at most 64 bits"):
        dumps(2**64, "batch-msgpack")


def test_an_array_that_is_not_decoded_can_be_copied():
    """With bytes of its own."""
    found = decode_binary(encode_binary(np.ones(2)), lambda array: array)

    assert found == copy.deepcopy(found)


@given(st.data())
def test_changed_messages_are_refused_or_decoded(data):
    """Whatever bytes a message has, it is decoded, or refused with an error of kombu's."""
    message = bytearray(encode_binary([{"a": np.ones(3, "f4"), "b": Decimal(1)}, torch.ones(2)]))
    for place in data.draw(st.lists(st.integers(0, len(message) - 1), min_size=1, max_size=4)):
        message[place] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    with suppress(DecodeError):
        loads(cut, "application/x-batch-msgpack", "binary")


OWN_TYPE = """
from kombu.utils import json
import kombu.serialization, numpy
json.register_type(numpy.ndarray, None, lambda array: array.tolist())
print(json.dumps(numpy.ones(2)))
"""


def test_a_program_without_batch_tasks_encodes_arrays_as_it_likes():
    """That celery_batch is installed changes nothing of what it sends."""
    ran = subprocess.run(
        [sys.executable, "-c", OWN_TYPE], capture_output=True, text=True, check=True
    )

    assert "[1.0, 1.0]\n" == ran.stdout


WITHOUT_IMPORT = """
import sys
from kombu.serialization import loads
assert not {"numpy", "torch", "celery"} & set(sys.modules), "imported"
found = loads(sys.stdin.buffer.read(), sys.argv[1], sys.argv[2])
print(type(found).__name__, [float(each) for each in found])
"""


@pytest.mark.parametrize("serializer", ["json", "batch-msgpack"])
def test_processes_that_never_import_celery_batch(serializer):
    """Where it is installed, kombu reads arrays: Flower and beat do, too."""
    content_type, encoding, body = dumps(np.arange(3.0), serializer)
    line = [sys.executable, "-c", WITHOUT_IMPORT, content_type, encoding]
    text = body if isinstance(body, bytes) else body.encode()
    ran = subprocess.run(line, input=text, capture_output=True, check=False)

    assert b"ndarray [0.0, 1.0, 2.0]\n" == ran.stdout, ran.stderr.decode()


def test_without_msgpack(monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ImportError, match=r"pip install 'celery-batch\[msgpack\]'"):
        encode_binary(1)
