"""What is taken out of arguments and results comes back, and what is no payload is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kombu.utils.json import dumps, loads

from celery_batch.errors import InvalidPayload
from celery_batch.payloads.values import PayloadReference, Payloads, put_back, take_out
from celery_batch.serialization.typed_json import StoredValue

DTYPES = [
    "?",
    "i1",
    "u2",
    ">i4",
    "u8",
    "f2",
    "f4",
    ">f8",
    "c8",
    "c16",
    "M8[s]",
    "m8[ns]",
    "U3",
    "S5",
]


def there_and_back(value: Any, least: int = 1, *, takes_bytes: bool = True) -> tuple[Any, int]:
    """Return a value as its receiver has it, and how many parts were stored."""
    taken = Payloads()
    sent = take_out(value, least, taken, takes_bytes=takes_bytes)
    body = loads(dumps(sent))
    if not len(taken):
        return body, 0
    header = loads(dumps(list(taken.reference())))
    reference = PayloadReference.from_header(header)
    return put_back(body, reference.split(bytes(taken.data))), len(taken)


@given(st.data())
def test_any_array_in_any_place(data):
    """Every dtype and shape, contiguous or not, nested or not, comes back equal."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    some = data.draw(st.lists(arrays.arrays(dtype, shape), min_size=1, max_size=4))
    some = [
        data.draw(st.sampled_from([each, each.T, each[..., ::2] if each.ndim else each]))
        for each in some
    ]
    found, stored = there_and_back({"a": some, "b": [some[0], 1, "x"]})

    for array, each in zip([*some, some[0]], [*found["a"], found["b"][0]], strict=True):
        assert array.shape == each.shape
        assert array.dtype.newbyteorder("=") == each.dtype.newbyteorder("=")
        assert array.tolist() == each.tolist() or array.dtype.kind in "fcmM"
        assert (
            np.array_equal(array, each, equal_nan=array.dtype.kind in "fc")
            or array.dtype.kind in "mM"
        )
    assert stored == sum(each.nbytes > 0 for each in [*some, some[0]])


def test_ten_million_elements():
    """A large array is its receiver's own, and can be changed, as a small one."""
    array = np.arange(10_000_000, dtype="f4")
    found, _ = there_and_back([array])

    assert np.array_equal(array, found[0])
    found[0][0] = -1
    assert array[0] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_tensors(dtype):
    """They come back with their dtype."""
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    found, stored = there_and_back((tensor, tensor.t()))

    assert stored == 2
    assert torch.equal(tensor, found[0])
    assert torch.equal(tensor.t(), found[1])


def test_small_values_stay():
    """Nothing is copied where nothing is large."""
    value = {"a": [np.ones(2), b"bytes", (1, "x")], "b": {"c": [1.5] * 1000}}
    taken = Payloads()

    assert value is take_out(value, 100, taken, takes_bytes=True)
    assert len(taken) == 0


def test_bytes_only_if_they_are_to_be():
    """They stay in their message unless a store was named."""
    value = [b"\0" * 100, b"\1" * 99]

    assert (value, 0) == there_and_back(value, 100, takes_bytes=False)
    assert (value, 1) == there_and_back(value, 100)


def test_what_cannot_be_encoded_stays_for_the_encoder():
    """It raises the error that names the way out."""
    for value in (np.array([object()] * 100), torch.eye(100).to_sparse()):
        assert value is take_out(value, 1, Payloads(), takes_bytes=True)


HEADERS = [
    None, 1, "text", [], [1, 2], {}, ["0" * 16, [1], 0, 0],
    ["0" * 15, [1], 0],
    ["../../../../etc/", [1], 0],
    ["0" * 16 + "\n", [1], 0],
    ["0" * 16, [], 0],
    ["0" * 16, [-1], 0],
    ["0" * 16, [True], 0],
    ["0" * 16, [1.5], 0],
    ["0" * 16, [1] * 1001, 0],
    ["0" * 16, {"0": 1}, 0],
    ["0" * 16, [1], "0"],
    [["0" * 16], [1], 0],
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids=repr)
def test_headers_that_are_no_reference(header):
    """They are refused."""
    with pytest.raises(ValueError, match="payload"):
        PayloadReference.from_header(header)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=5),
    lambda each: (
        st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=3), each, max_size=3)
    ),
    max_leaves=8,
)


@given(ANY, st.binary(max_size=64))
def test_any_header_and_any_bytes(header, data):
    """Whatever they are, nothing but a refusal follows."""
    with suppress(ValueError):
        PayloadReference.from_header(header).split(data)


STORED = st.builds(
    StoredValue,
    st.integers(0, 3),
    st.sampled_from(["ndarray", "tensor", "bytes", "json", "", "pickle"]),
    st.sampled_from(["<f4", "float32", "|O", "|V8", "<U1", "", "x", "bfloat16"]),
    st.lists(st.integers(0, 2**40), max_size=4),
)


@given(
    st.recursive(STORED, lambda each: st.lists(each, max_size=3), max_leaves=6),
    st.lists(st.binary(max_size=40) | st.sampled_from([b"[1]", b"{", b'"x"']), max_size=4),
)
def test_any_stored_value_and_any_parts(value, parts):
    """Whatever they are, nothing but a value or a refusal follows."""
    with suppress(InvalidPayload):
        put_back(value, [memoryview(part) for part in parts])


def test_a_part_is_used_once():
    """A small message cannot become a large one, nor one without an end."""
    parts = [memoryview(b'[{"__type__": "batch-payload", "__value__": [0, "json", "", []]}]')]

    with pytest.raises(InvalidPayload, match="used twice"):
        put_back(StoredValue(0, "json"), parts)
    with pytest.raises(InvalidPayload, match="used twice"):
        put_back([StoredValue(0, "bytes"), StoredValue(0, "bytes")], parts)


def test_deep_values():
    """A body that is nested too deeply is refused."""
    value: Any = StoredValue(0, "bytes")
    for _ in range(100_000):
        value = [value]

    with pytest.raises(InvalidPayload, match="deeply"):
        put_back(value, [memoryview(b"x")])


def test_bytes_that_were_changed():
    """Another length or another checksum is an error that says so."""
    taken = Payloads()
    take_out([np.arange(100)], 1, taken, takes_bytes=False)
    data, reference = bytes(taken.data), taken.reference()

    for changed in (data[:-1], data + b"x", b"x" + data[1:]):
        with pytest.raises(InvalidPayload, match="were changed"):
            reference.split(changed)
    with pytest.raises(InvalidPayload, match="gone"):
        reference.split(None)


@pytest.mark.parametrize("size", [1 << 13, (1 << 13) + 1, 20_000, 1 << 20])
def test_large_values_of_other_bytes(size: int):
    """They differ in what the checksum is made of: both ends, and no longer a gap than a tenth."""
    taken = Payloads()
    value = np.random.default_rng(1).bytes(size)
    take_out([value, b"x" * 100], 1, taken, takes_bytes=True)
    data, reference = bytes(taken.data), taken.reference()
    assert [value, b"x" * 100] == [bytes(each) for each in reference.split(data)]

    gap = size // 10
    for start in (0, 1, size // 3, size // 2, size - gap - 1, size - gap):
        changed = data[:start] + bytes(gap) + data[start + gap :]
        with pytest.raises(InvalidPayload, match="were changed"):
            reference.split(changed)
    for place in (0, size - 1, size + 50):
        changed = data[:place] + b"y" + data[place + 1 :]
        with pytest.raises(InvalidPayload, match="were changed"):
            reference.split(changed)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [1],
        [0, "ndarray", "<f4"],
        [-1, "json", "", []],
        [0, "json", "", [-1]],
        [0, 1, "", []],
    ],
    ids=repr,
)
def test_stored_values_that_are_none(value):
    """A body with them cannot be decoded."""
    with pytest.raises(ValueError, match="stored value"):
        StoredValue.from_json(value)


def test_a_stored_value_shows_what_it_is():
    """For costs and logs, where the bytes are not needed."""
    value = StoredValue(0, "ndarray", "<f4", [3, 4])

    assert ("ndarray(<f4, [3, 4])", 3, 2, (3, 4)) == (
        repr(value),
        len(value),
        value.ndim,
        value.shape,
    )
    assert repr(StoredValue(0, "bytes")) == "<bytes>"
    assert value.nbytes == 48
    with pytest.raises(TypeError):  # as an array's
        hash(value)
    with pytest.raises(TypeError, match="no length"):
        len(StoredValue(0, "bytes"))
