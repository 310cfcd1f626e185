"""Arrays as lists of numbers, for JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from celery_batch import as_lists
from celery_batch.serialization.arrays import EncodedArray, array_parts
from celery_batch.serialization.lists import list_rows


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.arange(6, dtype="f4").reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
        (np.array(3, "u1"), 3),
        (np.zeros((2, 0)), [[], []]),
        (np.array([True, False]), [True, False]),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (np.arange(3, dtype=">i2")[::-1], [2, 1, 0]),
        (torch.ones(2, 1, requires_grad=True), [[1], [1]]),
        (torch.arange(2).to(torch.bfloat16), [0, 1]),
        (torch.arange(2).to(torch.float8_e5m2), [0, 1]),
        (np.float32(1.5), 1.5),
    ],
    ids=str,
)
def test_arrays_become_lists(value, wanted):
    """Of any layout and dtype that JSON has, also within lists, tuples and dicts."""
    nested = {"a": [value, "text"], "b": (1, {"c": value})}

    assert wanted == as_lists(value)
    assert {"a": [wanted, "text"], "b": (1, {"c": wanted})} == as_lists(nested)
    json.dumps(as_lists(nested), allow_nan=False)


def test_numbers_that_json_has_not_become_none():
    """NaN and infinities of an array, in any dimension."""
    found = as_lists([np.array([[1, math.nan], [math.inf, -math.inf]]), np.float64("nan")])

    assert [[[1.0, None], [None, None]], None] == found


@pytest.mark.parametrize("value", [[1, "a", None], {"a": [1.0, {"b": (b"c",)}]}, {1}, 2.5], ids=str)
def test_what_has_no_arrays_is_the_same_object(value):
    """Nothing is copied."""
    assert as_lists(value) is value


@pytest.mark.parametrize(
    "value", [np.ones(2, complex), np.array(["2020"], "M8[D]"), np.array([b"a"])], ids=str
)
def test_elements_that_json_has_not_are_refused(value):
    """The error says which, and what to do."""
    with pytest.raises(TypeError, match=r"JSON has no array of .*: use \.astype"):
        as_lists([value])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="f4").reshape(2, 3),
        np.array(7, "i2"),
        np.zeros((2, 0)),
        np.array([["a", "\u00e4\U0001f600"], ["", "abc"]]),
        np.array(["", ""]),
        torch.tensor([[1.5, -3e38], [0, 1e-40]]).bfloat16(),
    ],
    ids=str,
)
def test_encoded_arrays_need_no_numpy(monkeypatch, array):
    """A process without NumPy has lists of what it could not decode."""
    kind, dtype, shape, data = array_parts(array)
    monkeypatch.setattr("celery_batch.serialization.lists.find_spec", lambda _name: None)

    assert array.tolist() == as_lists(EncodedArray(kind, dtype, tuple(shape), bytes(data)))


def test_tensors_need_no_numpy():
    """A worker with torch alone has lists, too; what JSON has not stays."""
    program = """
import sys
sys.modules["numpy"] = None
import torch
from celery import Celery
from celery_batch import BatchTask, as_lists
app = Celery("shop", set_as_current=False)
@app.task(base=BatchTask, name="made", outputs="lists")
def made(x):
    return [torch.tensor([1.5, 2.0]).to(getattr(torch, each)) for each in x]
print(made.run_batch(["float32", "bfloat16", "float16", "float8_e5m2", "int8"]))
print(as_lists({"a": torch.ones(2, dtype=torch.bool), "b": torch.tensor(3)}))
"""
    line = [sys.executable, "-W", "ignore", "-c", program]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    numbers = [1.5, 2.0]

    assert f"{[*[numbers] * 4, [1, 2]]}\n{{'a': [True, True], 'b': 3}}\n" == ran.stdout, ran.stderr


def test_each_array_of_a_list_becomes_a_list():
    """Outputs that are arrays become lists, those that JSON has not and all others stay."""
    wave, error = np.array([1j]), ValueError("bad")
    half = torch.tensor([0.5], dtype=torch.bfloat16)
    found = list_rows([np.array([1, 2]), half, np.array(3), wave, error, "text"])

    assert [[1, 2], [0.5], 3, wave, error, "text"] == found


def test_one_array_of_outputs_is_left_to_the_runner():
    """What is no list or tuple is returned as it is."""
    outputs = np.zeros((2, 3))

    assert list_rows(outputs) is outputs
