"""Arrays in files of inputs and outputs: .npy, list columns of Parquet, lists in JSON lines."""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

from celery_batch.backfill.checkpoint import Checkpoint
from celery_batch.backfill.inputs import Input
from celery_batch.backfill.npy import ArrayRows
from celery_batch.backfill.outputs import format_of, write_output
from celery_batch.backfill.window import Answer, Row, byte_size
from celery_batch.errors import BackfillError


def record(position, output=None, error=""):
    """Return a record of a checkpoint."""
    end = {"error": error} if error else {"output": output}
    return {"position": position, "key": str(position + 1), "line": 0, **end}


def answer(position, output):
    """Return an answer."""
    return Answer(Row(position, str(position + 1), ()), output)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.arange(12, dtype="f4").reshape(4, 3), np.ndarray),
        (np.asfortranarray(np.arange(24, dtype="i2").reshape(4, 3, 2)), np.ndarray),
        (np.arange(5, dtype=">f8"), float),
        (np.arange(5, dtype="u1"), int),
        (np.array(["a", "bc"]), str),
        (np.array([1j, 2]), np.complex128),
        (np.zeros((0, 3)), None),
    ],
    ids=["vectors", "matrices", "floats", "integers", "texts", "complex", "none"],
)
def test_rows_of_npy_are_items(tmp_path, array, kind):
    """Arrays of the file's dtype; numbers where it has one dimension; they are counted."""
    path = tmp_path / "in.npy"
    np.save(path, array)
    source = Input(str(path))
    found = list(source.records())

    assert array.tolist() == [getattr(each, "tolist", lambda each=each: each)() for each in found]
    assert {kind} - {None} == set(map(type, found))
    assert len(array) == source.count()


def _cut(path):
    np.save(path, np.ones(100))
    path.write_bytes(path.read_bytes()[:-8])


def _zipped(path):
    np.savez(path.with_suffix(".npz"), a=np.ones(2))
    path.with_suffix(".npz").rename(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b"nothing"), "is no .npy that can be read"),
        (lambda path: np.save(path, np.array(3.0)), "has a single value"),
        (lambda path: np.save(path, np.array([{}]), allow_pickle=True), "Python objects"),
        (lambda path: np.save(path, np.zeros(2, [("a", "f4")])), "cannot be sent"),
        (_zipped, "is no .npy that can be read"),
        (_cut, "is no .npy that can be read"),
    ],
    ids=["text", "no dimension", "objects", "structures", "zip", "cut off"],
)
def test_what_is_no_array_is_refused_at_once(tmp_path, make, words):
    """Before anything is sent, with the reason; nothing is unpickled."""
    path = tmp_path / "in.npy"
    make(path)

    with pytest.raises(BackfillError, match=rf"in\.npy: .*{words}"):
        Input(str(path))


def test_standard_input_is_no_npy():
    """It cannot be mapped to memory."""
    with pytest.raises(BackfillError, match="standard input"):
        Input("-", "npy")


@pytest.mark.parametrize("kind", ["input", "output"])
def test_npy_without_numpy_is_refused_at_once(tmp_path, monkeypatch, kind):
    """With what to install."""
    path = tmp_path / "file.npy"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr("celery_batch.backfill.npy.find_spec", lambda _name: None)

    with pytest.raises(BackfillError, match=r"pip install numpy"):
        Input(str(path)) if kind == "input" else format_of(path)


@pytest.mark.parametrize(
    ("outputs", "missing"),
    [
        ([np.arange(3, dtype="f4"), np.ones(3, "f4")], [np.nan] * 3),
        ([torch.ones(2, 2).half()] * 2, [[np.nan] * 2] * 2),
        ([np.ones(2, "i8")] * 2, [0, 0]),
        ([[1, 2.5], [3, 0.5]], [np.nan] * 2),
        ([1.5, 2.5], np.nan),
        ([np.array(["2020"], "M8[D]")] * 2, [None]),
    ],
    ids=["floats", "tensors", "integers", "lists", "numbers", "times"],
)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["in order", "as completed"])
def test_npy_has_a_row_for_each_row(tmp_path, outputs, missing, order):
    """In the input's order whatever the order of the answers; one that failed is filled."""
    rows = [record(0, outputs[0]), record(1, error="ValueError: no"), record(2, outputs[1])]
    out = tmp_path / "out.npy"
    write_output(out, lambda: [rows[n] for n in order], format_of(out))
    found = np.load(out, allow_pickle=False)

    lists = [getattr(each, "tolist", lambda each=each: each)() for each in outputs]
    assert [lists[0], lists[1]] == [found[0].tolist(), found[2].tolist()]
    assert repr(missing) == repr(found[1].tolist())
    assert getattr(outputs[0], "dtype", np.dtype("f8")) in (found.dtype, torch.float16)
    assert [out] == list(tmp_path.iterdir())


def test_npy_where_all_have_failed(tmp_path):
    """Nothing says which shape they would have: they are numbers."""
    write_output(
        tmp_path / "out.npy", lambda: [record(n, error="ValueError: no") for n in range(3)], "npy"
    )

    assert [True] * 3 == np.isnan(np.load(tmp_path / "out.npy")).tolist()


@pytest.mark.parametrize("output", [{"a": np.ones(2)}, "text", None, [1, [2]]], ids=str)
def test_a_first_output_that_is_no_array_stops(tmp_path, output):
    """With the row and the way out, before all others are computed in vain."""
    with pytest.raises(BackfillError, match=r"out\.npy: the output of row 1 is no row .*\.jsonl"):
        ArrayRows(tmp_path / "out.npy").checked(answer(0, output))


def test_numbers_fit_where_nothing_is_lost(tmp_path):
    """An integer among floats does, and not the other way round."""
    floats = ArrayRows(tmp_path / "out.npy", [record(0, 0.5)])
    integers = ArrayRows(tmp_path / "out.npy", [record(0, error="no"), record(1, 1)])

    assert not floats.checked(answer(1, 2)).error
    assert "row 3 is float64 []" in integers.checked(answer(2, 0.5)).error


def test_arrays_are_lists_in_json_lines_and_csv(tmp_path):
    """Also within dicts; what JSON has no numbers for stays a typed value."""
    with Checkpoint(tmp_path / "out.jsonl", {}) as checkpoint:
        outputs = [np.ones(2, "f4"), {"a": [np.arange(2)]}, np.array([1j], "c8"), LIKE_AN_ARRAY]
        checkpoint.add([answer(n, each) for n, each in enumerate(outputs)])
        write_output(tmp_path / "out.jsonl", checkpoint.records, "jsonl")
        write_output(tmp_path / "out.csv", checkpoint.records, "csv")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    found = [json.loads(line)["output"] for line in lines]

    assert [[1.0, 1.0], {"a": [[0, 1]]}] == found[:2]
    assert ("ndarray", "<c8") == (found[2]["__type__"], found[2]["__value__"][0])
    assert LIKE_AN_ARRAY == found[3]
    assert '1,"[1.0, 1.0]",' == (tmp_path / "out.csv").read_text().splitlines()[1]


#: The user's, and no array.
LIKE_AN_ARRAY = {"__type__": "ndarray", "__value__": [1]}


@pytest.mark.parametrize(
    ("kind", "rows", "dtype"),
    [
        (pa.list_(pa.float32()), [[1.0, 2.0], [3.0]], "f4"),
        (pa.list_(pa.float16(), 2), [[1.0, 2.0], [3.0, 4.0]], "f2"),
        (pa.large_list(pa.int64()), [[1], []], "i8"),
        (pa.list_(pa.bool_()), [[True, False]], "?"),
        (pa.list_(pa.list_(pa.uint8(), 2)), [[[1, 2], [3, 4]], [[5, 6]]], "u1"),
    ],
    ids=str,
)
def test_list_columns_of_parquet_are_arrays(tmp_path, kind, rows, dtype):
    """With their dtype; other columns are as they were, in their order."""
    table = pa.table({"id": list(range(len(rows) + 1)), "v": pa.array([*rows, None], kind)})
    pq.write_table(table.append_column("t", [[["a"]] * len(table)]), tmp_path / "in.parquet")
    *found, last = Input(str(tmp_path / "in.parquet")).records()

    assert rows == [each["v"].tolist() for each in found]
    assert {np.dtype(dtype)} == {each["v"].dtype for each in found}
    assert {"id": len(rows), "v": None, "t": ["a"]} == last
    assert ["id", "v", "t"] == [*last]


def test_tensor_columns_of_parquet_are_arrays(tmp_path):
    """Arrow's own type for arrays of one shape."""
    rows = np.arange(12, dtype="f4").reshape(2, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(rows)
    null = pa.array([None], column.type.storage_type)
    nulls = pa.ExtensionArray.from_storage(column.type, null)
    pq.write_table(pa.table({"v": pa.chunked_array([column, nulls])}), tmp_path / "in.parquet")
    *found, last = (each["v"] for each in Input(str(tmp_path / "in.parquet")).records())

    assert rows.tolist() == [each.tolist() for each in found]
    assert last is None


def test_lists_with_nulls_or_of_several_lengths_stay_lists(tmp_path):
    """An array has neither."""
    table = pa.table({"v": pa.array([[1, None]]), "w": pa.array([[[1], [2, 3]]])})
    pq.write_table(table, tmp_path / "in.parquet")

    assert [{"v": [1, None], "w": [[1], [2, 3]]}] == [
        *Input(str(tmp_path / "in.parquet")).records()
    ]


@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "?"])
def test_arrays_are_a_list_column_of_parquet(tmp_path, shape, dtype):
    """Of their dtype, with null where a row has failed; lengths may differ."""
    arrays = [np.ones(shape, dtype), np.zeros((1, *shape[1:]), dtype)]
    rows = [record(0, arrays[0]), record(1, error="ValueError: no"), record(2, arrays[1])]
    out = tmp_path / "out.parquet"
    write_output(out, lambda: rows, "parquet")
    found = [each["output"] for each in Input(str(out)).records()]

    assert found[1] is None
    assert [each.tolist() for each in arrays] == [found[0].tolist(), found[2].tolist()]
    assert {np.dtype(dtype)} == {found[0].dtype, found[2].dtype}


@pytest.mark.parametrize(
    "other", [np.ones(1, "f8"), np.ones((1, 1), "f4"), "text", np.float32(1), [1.0]], ids=repr
)
def test_other_outputs_of_parquet_are_text(tmp_path, other):
    """Where not all are arrays of one dtype and number of dimensions, all are JSON."""
    out = tmp_path / "out.parquet"
    write_output(out, lambda: [record(0, np.ones(1, "f4")), record(1, _plain(other))], "parquet")
    first, second = (each["output"] for each in Input(str(out)).records())

    assert "[1.0]" == first
    assert isinstance(second, str)


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value


def test_arrays_count_as_many_bytes_as_they_have():
    """So that a window holds no more of them than it may."""
    assert 8000 == byte_size(np.zeros(1000)) == byte_size(torch.zeros(1000).double())
    assert 80_000 == byte_size([np.zeros(1000)] * 10)
