"""Arrays and tensors in messages, as typed values of kombu's JSON and in MessagePack."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kombu.exceptions import DecodeError, EncodeError
from kombu.serialization import dumps, loads

from celery_batch.serialization.arrays import EncodedArray, describe, encoded_hook, split_rows
from celery_batch.serialization.typed_json import encode_json, encode_result, register_types

register_types()

NUMBERS = (
    arrays.boolean_dtypes()
    | arrays.integer_dtypes(endianness="=")
    | arrays.unsigned_integer_dtypes(endianness="=")
    | arrays.floating_dtypes(endianness="=")
    | arrays.complex_number_dtypes(endianness="=")
    | arrays.datetime64_dtypes(endianness="=")
    | arrays.timedelta64_dtypes(endianness="=")
    | arrays.unicode_string_dtypes(endianness="=")
    | arrays.byte_string_dtypes(endianness="=")
)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)

TORCH = [
    "float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
]  # fmt: skip


SERIALIZERS = pytest.mark.parametrize("serializer", ["json", "batch-msgpack"])


def sent(value: Any, serializer: str = "json") -> Any:
    """Return what another process decodes."""
    content_type, encoding, text = dumps(value, serializer)
    return loads(text, content_type, encoding)


def are_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays have the same type, shape and values, bit by bit."""
    return (
        one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
        and one.shape == other.shape
        and one.astype(one.dtype.newbyteorder("<")).tobytes()
        == other.astype(other.dtype.newbyteorder("<")).tobytes()
    )


@SERIALIZERS
@given(st.data(), NUMBERS, SHAPES)
def test_any_array_comes_back(serializer, data, dtype, shape):
    """With its type, its shape, and all its bits."""
    array = data.draw(arrays.arrays(dtype, shape))

    assert are_same(array, sent(array, serializer))


@SERIALIZERS
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(20)[::-3],
        np.broadcast_to(np.float32(3), (2, 2)),
        np.arange(5, dtype=">i4"),
        np.array(["a", "bc"], dtype=">U2"),
        np.random.default_rng(1).random(10**7 // 8, dtype="f4"),
    ],
    ids=["transposed", "fortran", "reversed", "broadcast", "big-endian", "big-texts", "large"],
)
def test_any_layout_comes_back(array, serializer):
    """Its elements are the same; they are in C order then."""
    found = sent([{"a": array}], serializer)[0]["a"]

    assert are_same(array, found)
    assert found.flags["C_CONTIGUOUS"]


def test_a_decoded_array_can_be_changed():
    """As one that has not been sent."""
    found = sent(np.zeros(3))
    found += 1

    assert [1, 1, 1] == found.tolist()


@SERIALIZERS
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_any_tensor_comes_back(dtype, shape, serializer):
    """With its type and all its bits; so does one that is not contiguous."""
    bits = torch.randint(0, 2, (*shape, 16), dtype=torch.uint8)
    tensor = bits[..., : torch.empty(0, dtype=getattr(torch, dtype)).element_size()]
    tensor = tensor.contiguous().view(getattr(torch, dtype)).squeeze(-1)
    for each in (tensor, tensor.t() if tensor.ndim == 2 else tensor):
        found = sent(each, serializer)

        assert isinstance(found, torch.Tensor)
        assert (each.dtype, each.shape) == (found.dtype, found.shape)
        assert (
            each.contiguous().flatten().view(torch.uint8).tolist()
            == (found.flatten().view(torch.uint8).tolist())
            or not each.numel()
        )


@SERIALIZERS
def test_parts_of_tensors(serializer):
    """Those of a network, and conjugated ones, are their values."""
    weight = torch.nn.Linear(2, 2).weight
    conjugated = torch.tensor([1 + 2j]).conj()

    assert torch.equal(weight, sent(weight, serializer))
    assert torch.equal(conjugated, sent(conjugated, serializer))


@SERIALIZERS
@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (np.float32(1.5), 1.5),
        (np.float64(0.1), 0.1),
        (np.int64(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(1), True),
    ],
)
def test_numbers_of_numpy_become_pythons(number, wanted, serializer):
    """JSON has no others."""
    found = sent(number, serializer)

    assert (wanted, type(wanted)) == (found, type(found))


@SERIALIZERS
@pytest.mark.parametrize(
    "number", [np.complex64(2j), np.datetime64("2020-01-01"), np.longdouble(3)]
)
def test_numbers_that_python_lacks_become_arrays(number, serializer):
    """Arrays without dimensions."""
    found = sent(number, serializer)

    assert () == found.shape
    assert found.dtype == number.dtype
    assert found == number


@SERIALIZERS
@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.array([object()]), "an array of object cannot be encoded: use .tolist"),
        (np.zeros(2, [("a", "f4")]), "cannot be encoded: use .tolist"),
        (np.ma.array([1, 2], mask=[0, 1]), "a masked array cannot be encoded: use its .filled"),
        (np.zeros(2, ml_dtypes.bfloat16), "an array of bfloat16 cannot be encoded"),
        (torch.zeros(2).to_sparse(), "cannot be encoded: use .to_dense"),
    ],
    ids=["objects", "structures", "masked", "extension", "sparse"],
)
def test_what_is_not_plain_is_refused(array, error, serializer):
    """With what to do instead; nothing is pickled."""
    with pytest.raises(EncodeError, match=error):
        dumps(array, serializer)


def forged(kind: str, value: Any) -> str:
    """Return the JSON of a typed value."""
    return f'{{"__type__": "{kind}", "__value__": {encode_json(value)}}}'


VALUE = ["<f4", [2], "AAAAAAAAAAA="]


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [],
        {},
        VALUE[:2],
        ["|O8", [1], "AAAAAAAAAAA="],
        ["f4", [2], VALUE[2]],
        ["<f4,<f4", [1], VALUE[2]],
        ["<f4", [3], VALUE[2]],
        ["<f4", [-2], VALUE[2]],
        ["<f4", [2.0], VALUE[2]],
        ["<f4", [True, 2], VALUE[2]],
        ["<f4", "2", VALUE[2]],
        ["<f4", [1] * 65 + [2], VALUE[2]],
        ["<f4", [0, 10**30], ""],
        ["<f4", [2], "A" * 11 + "é"],
        ["<f4", [2], "!!!!!!!!!!!!"],
        ["<M8[xy]", [1], VALUE[2]],
        ["<f3", [1], "AAAA"],
        ["<f999999999", [0], ""],
        ["float32", [2], VALUE[2]],
    ],
)
def test_forged_arrays_are_refused(value):
    """As any body that cannot be decoded; no memory is taken for what they claim to be."""
    with pytest.raises(DecodeError):
        loads(forged("ndarray", value), "application/json", "utf-8")


@given(st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=3) | st.sampled_from(VALUE),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=2), each),
    max_leaves=8,
), st.sampled_from(["ndarray", "tensor", "dict", "no such type"]))  # fmt: skip
def test_forged_values_are_refused_or_decoded(value, kind):
    """They are decoded to what their type says, or refused."""
    types = {"ndarray": np.ndarray, "tensor": torch.Tensor, "dict": dict}
    try:
        found = loads(forged(kind, value), "application/json", "utf-8")
    except DecodeError:
        return

    assert isinstance(found, types[kind])


USERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["__type__"]), each, max_size=3)
        | st.fixed_dictionaries({"__type__": each, "__value__": each})
    ),
    max_leaves=10,
)


@given(USERS)
def test_a_users_dicts_stay_dicts(value):
    """Also those that look like kombu's typed values."""
    assert value == loads(encode_json(value), "application/json", "utf-8")


RESULTS = (
    arrays.arrays(NUMBERS, SHAPES)
    | arrays.arrays(NUMBERS, SHAPES).map(lambda array: array.T)
    | st.sampled_from(TORCH).map(lambda dtype: torch.ones(2, 3).to(getattr(torch, dtype)))
    | st.sampled_from([None, "null", np.float32(2), [np.ones(2)], VALUE])
)


@given(RESULTS, USERS)
def test_meta_data_of_a_result_are_as_their_json(result, other):
    """An array is written without JSON's encoder; what stands beside it is as it would be."""
    meta = {"status": "SUCCESS", "result": result, "traceback": None, "args": other, "kwargs": None}

    assert encode_json(meta) == encode_result(meta)


def test_a_users_dict_beside_an_array():
    """The one is data, the other an array."""
    typed = {"__type__": "ndarray", "__value__": {"__type__": 1, "__value__": 2}}
    found = loads(encode_json((typed, {"a": np.ones(2)})), "application/json", "utf-8")

    assert typed == found[0]
    assert [1, 1] == found[1]["a"].tolist()


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_rows_of_outputs():
    """Those of an array of numbers or times are arrays; others are left as they are."""
    array, tensor = np.ones((3, 2), "f4"), torch.ones(3, 2, requires_grad=True)
    assert [(2,)] * 3 == [row.shape for row in split_rows(array)]
    assert [(2,)] * 3 == [tuple(row.shape) for row in split_rows(tensor)]
    assert [[1, 2], [3, 4]] == [row.tolist() for row in split_rows(np.matrix("1 2; 3 4"))]
    for same in (np.ones(3), torch.ones(3), np.array([["a"]]), [1.0, "a"], None):
        assert same is split_rows(same)
    for times in (array.astype("M8[ns]"), np.arange(3).astype("m8[D]")):
        rows = loads(encode_json(split_rows(times)), "application/json", "utf-8")
        assert np.array_equal(times, np.stack(rows))
        assert np.stack(rows).dtype == times.dtype


def encoded(value: Any) -> Any:
    """Return a value as a process sees it that decodes no arrays."""
    from kombu.utils.json import loads as load  # noqa: PLC0415

    return load(encode_json(value), object_hook=encoded_hook)


def test_arrays_that_are_not_decoded():
    """Cost functions see their types and shapes, and their rows."""
    images, texts = encoded([np.ones((3, 2, 2), "f4"), ["a"]])
    numbers, empty, flag = encoded([torch.arange(3), np.ones((2, 0)), np.array(1, bool)])

    assert ("<f4", (3, 2, 2), 3, 48, 3) == (
        images.dtype, images.shape, len(images), images.nbytes, images.ndim,
    )  # fmt: skip
    assert [(2, 2)] * 3 == [row.shape for row in images]
    assert [0, 1, 2] == list(numbers)
    assert [(0,), (0,)] == [row.shape for row in empty]
    with pytest.raises(TypeError, match="has no length"):
        len(flag)
    with pytest.raises(TypeError, match="unhashable"):
        hash(flag)
    assert ["a"] == texts


def test_arrays_that_are_not_decoded_are_numpys_too():
    """Its functions take them, and they can be sent on."""
    found = encoded(np.arange(3.0))

    assert 3 == np.sum(found)
    assert [0, 1, 2] == sent(found).tolist()
    assert found == encoded(np.arange(3.0))
    assert found != encoded(np.arange(3))
    assert found != 1


def test_short_texts():
    """Logs and events show an array's type and shape."""
    value = {"a": [np.ones((2, 3), "f4")], "b": (torch.ones(2, dtype=torch.bfloat16), "x", 1)}

    assert "{'a': [ndarray(float32, (2, 3))], 'b': (tensor(bfloat16, (2,)), 'x', 1)}" == repr(
        describe(value)
    )
    assert "ndarray(<f4, [2, 3])" == repr(encoded(value["a"][0]))


PROGRAM = """
import sys
from kombu.utils.json import loads, dumps
import celery_batch.task
assert not {"numpy", "torch"} & set(sys.modules), "imported"
for blocked in sys.argv[2:]:
    sys.modules[blocked] = None
found = loads(sys.argv[1])
assert "torch" not in sys.modules or sys.modules["torch"] is None
print(type(found).__name__, found.dtype, found.shape, dumps(found) == sys.argv[1])
print([float(x) for x in found.flatten()] if hasattr(found, "flatten") else list(found))
"""


@pytest.mark.parametrize(
    ("value", "blocked", "wanted"),
    [
        (np.arange(3, dtype="f4"), [], ("ndarray float32 (3,) True", "[0.0, 1.0, 2.0]")),
        (np.arange(3, dtype="f4"), ["numpy"], ("EncodedArray <f4 (3,) True", "[0.0, 1.0, 2.0]")),
        (torch.arange(3.0), [], ("ndarray float32 (3,) False", "[0.0, 1.0, 2.0]")),
        (
            torch.tensor([1.5, -3e38]).bfloat16(),
            [],
            ("ndarray float32 (2,) False", "[1.5, -3.00405527047391e+38]"),
        ),
        (
            torch.arange(2).to(torch.float8_e5m2),
            [],
            ("EncodedArray float8_e5m2 (2,) True", ""),
        ),
    ],
    ids=["array", "without-numpy", "tensor", "bfloat16", "float8"],
)
def test_processes_without_numpy_or_torch(value, blocked, wanted):
    """Nothing is imported to decode but NumPy, and that only if there is one."""
    line = [sys.executable, "-c", PROGRAM, encode_json(value), *blocked]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    head, *rest = ran.stdout.splitlines() or [ran.stderr]

    assert wanted[0] == head
    assert not wanted[1] or rest[0].startswith(wanted[1])


def test_an_encoded_array_says_what_is_wrong():
    """It is made of parts that belong together."""
    with pytest.raises(ValueError, match="has 8 bytes, got 2"):
        EncodedArray("ndarray", "<f4", (2,), b"ab")
    with pytest.raises(ValueError, match="no kind of array 'list'"):
        EncodedArray("list", "<f4", (2,), b"ab")


@pytest.mark.parametrize(
    ("kind", "dtype", "missing", "way"),
    [
        ("ndarray", "<f4", True, "install NumPy, or make lists of it with celery_batch.as_lists()"),
        ("tensor", "bfloat16", True, "install NumPy, or make lists of it"),
        ("ndarray", "<f4", False, "call its decode()"),
        ("tensor", "float8_e5m2", False, "import torch first"),
    ],
)
def test_an_encoded_array_says_how_to_get_an_array(monkeypatch, kind, dtype, missing, way):
    """Whoever takes it for one is told what is missing in this process."""
    if missing:
        monkeypatch.setitem(sys.modules, "numpy", None)
    size = 4 if dtype == "<f4" else 2 if dtype == "bfloat16" else 1
    array = EncodedArray(kind, dtype, (2,), bytes(2 * size))
    with pytest.raises(AttributeError) as raised:
        _ = array.mean

    assert f"{array!r} is not decoded to an array: {way}" in str(raised.value)
    assert not hasattr(array, "tolist")


def test_numpy_calculates_with_encoded_arrays():
    """It decodes them; it has no array of some of torch's."""
    array = EncodedArray("ndarray", "<f4", (2,), np.array([1, 2], "<f4").tobytes())
    ones, eight = np.ones(2, "f4"), EncodedArray("tensor", "float8_e5m2", (2,), b"ab")

    assert [[2, 3]] * 2 == [(array + ones).tolist(), (ones + array).tolist()]
    assert [0.5, 1] == (array / np.float32(2)).tolist()
    with pytest.raises(TypeError, match="import torch first"):
        np.asarray(eight)


def test_a_value_that_contains_itself():
    """Is refused, as by kombu, though it has a typed value."""
    value: list[object] = [np.ones(1)]
    value.append(value)
    with pytest.raises(ValueError, match="Circular"):
        encode_json(value)


class Scaled(np.ndarray):
    """An array that says itself how JSON has it."""

    def __json__(self) -> list[float]:
        """Return its numbers."""
        return self.tolist()


def test_what_others_have_registered_is_kept():
    """As an array that knows how it is encoded, a result is what kombu makes of it."""
    meta = {"status": "SUCCESS", "result": np.ones(2).view(Scaled), "traceback": None}

    assert encode_json(meta) == encode_result(meta)
    assert [1.0, 1.0] == loads(encode_result(meta), "application/json", "utf-8")["result"]
