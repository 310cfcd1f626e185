"""Values are encoded exactly, and equal ones to equal bytes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.serialization.plain_values import NotPlain, decode_plain, encode_plain

ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers())
VALUES = st.recursive(
    ATOMS | st.lists(st.integers()) | st.lists(st.floats()),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
)


def shape(value: Any) -> Any:
    """Return a value with the type of each part, and floats by their bits."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [shape(each) for each in value]
    return type(value), value.hex() if isinstance(value, float) else value


@given(VALUES)
def test_what_is_decoded_is_what_was_encoded(value: Any):
    """Every part has its type, its value and its place."""
    assert shape(value) == shape(decode_plain(encode_plain(value)))


@given(VALUES, VALUES)
def test_unlike_values_have_unlike_bytes(one: Any, other: Any):
    """1, 1.0 and True are unlike, and so are 0.0 and -0.0, a list and a tuple."""
    assert (shape(one) == shape(other)) == (encode_plain(one) == encode_plain(other))


@given(st.dictionaries(KEYS, ATOMS), st.randoms())
def test_sorted_dicts_have_equal_bytes(value: dict[Any, Any], random: Any):
    """Whatever the order of their items, also where they are in others."""
    items = [*value.items()]
    random.shuffle(items)
    one, other = [{"a": value}], [{"a": dict(items)}]

    assert encode_plain(one, sort=True) == encode_plain(other, sort=True)


@pytest.mark.parametrize(
    "values", [(1, 1.0, True), (0.0, -0.0, 0, False), ([1], (1,)), ("a", b"a"), ([], {}, ())]
)
def test_values_that_python_takes_for_equal_are_told_apart(values: tuple[Any, ...]):
    """A model may answer them differently."""
    assert len(values) == len({encode_plain(each) for each in values})


def test_nan_equals_itself_here():
    """Two requests for it are the same work."""
    assert encode_plain([math.nan]) == encode_plain([float("nan")])


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, [Decimal(1)], {"a": np.float32(1)}, np.array([object()]), bytearray(b"a")],
)
def test_other_types_are_refused(value: Any):
    """Nothing is guessed about them."""
    with pytest.raises(NotPlain, match=r"is not plain|cannot be encoded"):
        encode_plain(value)


def test_numpys_float64_is_a_float():
    """It is one in JSON as well."""
    found = decode_plain(encode_plain({"score": np.float64(0.25), "all": [np.float64(1)]}))

    assert {"score": 0.25, "all": [1.0]} == found
    assert type(found["score"]) is type(found["all"][0]) is float


def test_what_is_nested_too_deeply_is_refused():
    """It ends neither the process nor the batch."""
    value: Any = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(NotPlain):
        encode_plain(value)
    with pytest.raises(NotPlain):
        decode_plain(b"l\1\0\0\0" * 100_000)


@given(st.binary())
def test_foreign_bytes_make_plain_values_or_an_error(data: bytes):
    """Nothing else can be made of what anyone has written to the cache."""
    try:
        found = decode_plain(data)
    except NotPlain:
        return

    assert shape(found) == shape(decode_plain(encode_plain(found)))


@given(VALUES, st.data())
def test_a_part_of_an_encoded_value_is_none(value: Any, data: st.DataObject):
    """A value that was cut off is no other value."""
    encoded = encode_plain(value)
    end = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(NotPlain):
        decode_plain(encoded[:end])
    with pytest.raises(NotPlain):
        decode_plain(encoded + b"N")


def test_no_code_of_a_value_runs():
    """A worker's main process encodes arguments; pickle may bring an object of any class."""

    class Proxy:
        @property
        def __class__(self) -> type:
            raise SystemExit

    with pytest.raises(NotPlain, match="Proxy is not plain"):
        encode_plain([Proxy()])
