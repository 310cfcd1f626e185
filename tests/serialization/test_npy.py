"""The format .npy: what NumPy writes is read, and what is written NumPy reads."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.serialization.arrays import EncodedArray, array_parts
from celery_batch.serialization.npy import decode_npy, encode_npy, npy_header

DTYPES = ["f2", "f4", "f8", "i1", "i8", "u4", "?", "c8", "M8[s]", "S3", "U2", ">f4"]
SHAPES = st.lists(st.integers(1, 4), max_size=4).map(tuple)


def saved(array):
    """Return what NumPy makes of an array."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def drawn(shape, dtype, order):
    """Return an array with different elements."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return np.asarray(numbers.astype(dtype), order=order)


@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from("CF"))
def test_numpys_files_are_read(shape, dtype, order):
    """With their dtype, of either order, and without a copy."""
    array = drawn(shape, dtype, order)
    found = decode_npy(saved(array))

    assert (array.dtype, array.shape) == (found.dtype, found.shape)
    assert array.tolist() == found.tolist()
    assert not found.flags.owndata


@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from("CF"))
def test_numpy_reads_what_is_written(shape, dtype, order):
    """An array is the same; the elements begin at a multiple of 64 bytes."""
    array = drawn(shape, dtype, order)
    body = encode_npy(array)
    found = np.load(io.BytesIO(body), allow_pickle=False)

    assert (array.dtype.newbyteorder("<"), array.tolist()) == (found.dtype, found.tolist())
    assert 0 == (len(body) - array.nbytes) % 64


@pytest.mark.parametrize(
    ("outputs", "dtype", "wanted"),
    [
        ([np.ones(2, "f4"), np.zeros(2, "f4")], "f4", [[1, 1], [0, 0]]),
        ([torch.ones(2).half()] * 2, "f2", [[1, 1], [1, 1]]),
        ([torch.ones(1).to(torch.bfloat16)], "f4", [[1]]),
        ([1.5, 2], "f8", [1.5, 2]),
        ([[1, 2], [3, 4]], "i8", [[1, 2], [3, 4]]),
        ([np.float32(1.5)], "f8", [1.5]),
    ],
    ids=str,
)
def test_several_arrays_are_the_rows_of_one(outputs, dtype, wanted):
    """So are lists of numbers."""
    found = np.load(io.BytesIO(encode_npy(outputs)))

    assert wanted == found.tolist()
    assert found.dtype in (np.dtype(dtype), np.float32)


def test_encoded_arrays_are_written_as_they_are():
    """What a process without NumPy could not decode; nothing imports NumPy for it."""
    kind, dtype, shape, data = array_parts(np.arange(3, dtype="i2"))
    encoded = EncodedArray(kind, dtype, tuple(shape), bytes(data))

    assert [[0, 1, 2]] * 2 == np.load(io.BytesIO(encode_npy([encoded, encoded]))).tolist()


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([np.ones(2), np.ones(3)], r"output 1 is an array of <f8 \[3\], and output 0 of <f8 \[2\]"),
        ([np.ones(2), np.ones(2, "f4")], "output 1 is an array of <f4"),
        ([[1, 2], [3]], "inhomogeneous"),
        ([np.ones(2), None], "inhomogeneous"),
        ({"a": np.ones(2)}, "a dict is no array"),
        (["a"], "no array of numbers"),
        ([], "there is no output"),
    ],
    ids=str,
)
def test_what_is_no_array_is_refused(outputs, words):
    """The error names the outputs that differ."""
    with pytest.raises((TypeError, ValueError), match=words):
        encode_npy(outputs)


def test_a_header_has_one_length_for_any_number_of_rows():
    """It can be written again in its place."""
    assert 1 == len({len(npy_header("<f4", (10**n, 384))) for n in range(19)})


GOOD = saved(np.arange(6.0).reshape(2, 3))


def headed(words, data=b""):
    """Return a .npy with such a header."""
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words + data


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:20],
        b"\x93NUMPY\x09\x00" + GOOD[8:],
        saved(np.array([{}], object)),
        saved(np.zeros(2, [("a", "f4")])),
        headed(b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,)}"),
        headed(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}", bytes(8)),
        headed(b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 0)}"),
        headed(b"{'descr': '|S0', 'fortran_order': False, 'shape': (10000000000000,)}"),
        headed(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\nsystem\n"),
        headed(b"(" * 9000),
        headed(b"{'descr': '<f8'}"),
        headed(b"__import__('os')"),
        headed(b"\xff" * 100),
    ],
    ids=range(17),
)
def test_hostile_bytes_are_refused(body):
    """At once: no object is unpickled, and no memory is taken for what is not there."""
    with pytest.raises(ValueError, match=r"npy|bytes|objects|elements"):
        decode_npy(body)


@given(st.binary(max_size=200), st.integers(0, len(GOOD)))
def test_any_bytes_are_an_array_or_refused(noise, at):
    """Whatever is overwritten or put between."""
    for body in (GOOD[:at] + noise + GOOD[at:], GOOD[:at] + noise + GOOD[at + len(noise) :]):
        try:
            found = decode_npy(body)
        except ValueError:
            continue
        assert found.nbytes <= len(body)
