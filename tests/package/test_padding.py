"""Rows of unlike lengths become one array or tensor, with a mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.errors import ItemTooLarge
from celery_batch.padding import pad, pad_torch, padded_length

both = pytest.mark.parametrize("function", [pad, pad_torch])
LADDER = (4, 8, 32)


@pytest.mark.parametrize(
    ("longest", "options", "expected"),
    [
        (5, {}, 5),
        (5, {"lengths": LADDER}, 8),
        (8, {"lengths": [32, 8]}, 8),
        (0, {"lengths": LADDER}, 4),
        (5, {"multiple": 8}, 8),
        (16, {"multiple": 8}, 16),
    ],
)
def test_length(longest, options, expected):
    """The longest row's, the smallest of the lengths that holds it, or the next multiple."""
    assert expected == padded_length(longest, **options)


def test_what_is_longer_than_all_lengths_is_too_large():
    """The error names both numbers, and the way out."""
    with pytest.raises(ItemTooLarge, match="length of 33, and the largest of the lengths is 32"):
        pad([[1], [0] * 33], lengths=LADDER)


def test_lengths_and_a_multiple_contradict_each_other():
    """Only one of them can be meant."""
    with pytest.raises(TypeError, match="not to both"):
        padded_length(1, lengths=LADDER, multiple=8)


@both
@given(rows=st.lists(st.lists(st.integers(1, 99), max_size=32), max_size=5), value=st.integers())
def test_mask_says_where_the_values_are(function, rows, value):
    """Behind them is the padding, in a row of one of the lengths."""
    value %= 1000
    padded, mask = function(rows, lengths=LADDER, value=value)
    length = padded_length(max(map(len, rows), default=0), lengths=LADDER)

    assert (len(rows), length) == tuple(padded.shape) == tuple(mask.shape)
    for row, cells, marks in zip(rows, padded.tolist(), mask.tolist(), strict=True):
        assert row + [value] * (length - len(row)) == cells
        assert [True] * len(row) + [False] * (length - len(row)) == marks


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[1, 2], []], "int64"),
        ([[], []], "int64"),
        ([[0.5], [1, 2]], "float32"),
        ([[True], [False, True]], "bool"),
        ([np.array([1], "int16"), np.array([1, 2], "int32")], "int32"),
        ([np.array([0.5]), np.array([])], "float64"),
    ],
)
def test_types(rows, dtype):
    """They are the rows' own, or those that models compute with."""
    padded, mask = pad(rows)
    tensor, marks = pad_torch(rows)

    assert (dtype, "bool") == (padded.dtype, mask.dtype)
    assert (f"torch.{dtype}", torch.bool) == (str(tensor.dtype), marks.dtype)


def test_a_type_may_be_chosen():
    """Also one that the rows do not have."""
    assert np.float16 == pad([[1], [2, 3]], dtype=np.float16)[0].dtype
    assert torch.int32 == pad_torch([[1], [2, 3]], dtype=torch.int32)[0].dtype


@both
def test_rows_of_vectors(function):
    """Only the first dimension is padded."""
    frames = [np.ones((2, 3), "float32"), np.ones((0, 3), "float32"), np.ones((5, 3), "float32")]
    padded, mask = function(frames, multiple=4, value=-1)

    assert (3, 8, 3) == tuple(padded.shape)
    assert [2, 0, 5] == mask.sum(1).tolist()
    assert 21.0 - 17 * 3 == padded.sum()


@both
def test_numbers_are_no_rows(function):
    """Who forgets the list around one row is told so."""
    with pytest.raises(TypeError, match="row 0 is no list and no array: 1; pad takes a list of ro"):
        function([1, 2], lengths=(4,))


@both
@pytest.mark.parametrize("other", [np.ones((2, 1)), np.ones(2), np.ones((2, 4))], ids=np.shape)
def test_rows_of_other_vectors_are_refused(function, other):
    """Also those whose values numpy and torch would repeat."""
    with pytest.raises(ValueError, match=r"row 2 has elements of shape .*, and those before it of"):
        function([np.ones((0, 1)), np.ones((1, 3)), other])


def test_tensors_on_a_device():
    """Tensor and mask go there together."""
    padded, mask = pad_torch([torch.ones(1), torch.ones(2)], device="meta")

    assert {"meta"} == {padded.device.type, mask.device.type}


def test_nothing_heavy_is_imported_before_it_is_used(in_python):
    """A web server that imports the module needs neither library."""
    code = (
        "import sys; from celery_batch import padding; padding.padded_length(3, multiple=8);"
        "print([name for name in ('numpy', 'torch') if name in sys.modules])"
    )

    assert "[]" == in_python(code)
