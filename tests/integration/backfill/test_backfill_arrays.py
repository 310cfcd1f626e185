"""``celery batch backfill`` from arrays to arrays, with a real worker."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

ROWS = 3000


def vectors(rows=ROWS):
    """Return vectors whose first numbers are those of their rows, above 100."""
    return np.arange(100, 100 + rows, dtype="f4")[:, None] * np.ones(8, "f4")


def files(setup, source="in.npy", output="out.npy"):
    """Return the options that name an input and an output."""
    return ["--input", str(setup.folder / source), "--output", str(setup.folder / output)]


def test_an_array_goes_in_and_out(setup):
    """Each row is an item, and the output has a row for each, of the outputs' dtype."""
    np.save(setup.folder / "in.npy", vectors(500).astype("f2"))
    done = setup.run("backfill_tasks.scaled", *files(setup))
    found = np.load(setup.folder / "out.npy", mmap_mode="r", allow_pickle=False)

    assert 0 == done.returncode, done.stderr
    assert (np.float16, (500, 8)) == (found.dtype, found.shape)
    assert np.array_equal(2 * vectors(500).astype("f2"), found)
    assert ["in.npy", "out.npy", "out.npy.about"] == sorted(p.name for p in setup.folder.iterdir())


def interrupt(setup, kill):
    """Begin a backfill of vectors that takes long, and end it when some have an output."""
    process = setup.begin("backfill_tasks.scaled_slowly", *files(setup))
    partial = setup.folder / "out.npy.partial"
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        if partial.exists() and partial.stat().st_size > 3_000:
            process.send_signal(kill)
            break
        time.sleep(0.005)
    process.wait(60)
    assert not (setup.folder / "out.npy").exists()


def test_other_values_of_the_same_shape_are_another_input(setup):
    """A backfill does not go on with an array that differs in its last rows alone."""
    np.save(setup.folder / "in.npy", vectors())
    interrupt(setup, signal.SIGINT)
    other = vectors()
    other[-9:] += 1
    np.save(setup.folder / "in.npy", other)
    refused = setup.run("backfill_tasks.scaled_slowly", *files(setup))
    anew = setup.run("backfill_tasks.scaled", *files(setup), "--restart")

    assert (1, 0) == (refused.returncode, anew.returncode), anew.stderr
    assert "the input has changed since; use --restart to start anew" in refused.stderr
    assert np.array_equal(2 * other, np.load(setup.folder / "out.npy"))


def test_rows_that_fail_are_filled_and_run_again(setup):
    """An error, and an output of another shape, which names both; the others stay in place."""
    array = vectors(40)
    array[[5, 6], 0] = 13, 14
    np.save(setup.folder / "in.npy", array)
    done = setup.run("backfill_tasks.scaled", *files(setup))
    found = np.load(setup.folder / "out.npy")
    lines = (setup.folder / "out.npy.errors").read_text().splitlines()
    first, second = map(json.loads, lines)

    assert 1 == done.returncode
    assert [5, 6] == np.flatnonzero(np.isnan(found).all(1)).tolist()
    assert np.array_equal(2 * array[7:], found[7:])
    place_of_first = {"key": "6", "input_row": 6, "output_row": 6}
    assert place_of_first | {"error": "ValueError: bad vector"} == first
    assert (
        "the output of row 7 is float32 [9], and out.npy has rows of float32 [8]"
        in (second["error"])
    )
    assert second["error"] in done.stderr

    array[[5, 6], 0] = 13, 100
    np.save(setup.folder / "in.npy", array)
    done = setup.run("backfill_tasks.scaled", *files(setup), "--retry-errors")
    found = np.load(setup.folder / "out.npy")
    assert (1, [5]) == (done.returncode, np.flatnonzero(np.isnan(found).any(1)).tolist())
    assert np.array_equal(2 * array[6:], found[6:])


def test_outputs_that_are_no_arrays_stop_it(setup):
    """Before all are computed in vain, with the way out; another output takes them."""
    np.save(setup.folder / "in.npy", vectors(200))
    refused = setup.run("backfill_tasks.named", *files(setup))
    taken = setup.run("backfill_tasks.named", *files(setup, output="out.jsonl"))

    assert (1, 0) == (refused.returncode, taken.returncode), taken.stderr
    assert "the output of row 1 is no row of an array, since a dict is no array" in refused.stderr
    assert "name a .jsonl or .parquet output" in refused.stderr
    assert not (setup.folder / "out.npy.partial").exists()
    last = setup.answers()[-1]
    assert {"key": "200", "output": {"double": [598.0] * 8, "sum": 8 * 299.0}} == last


def test_list_columns_go_in_and_out(setup):
    """A column of lists is one of arrays for the model, and so are the outputs in the file."""
    table = pa.table({"id": ["a", "b", "c"], "vector": [[1.0, 2.0], [13.0, 0.0], [14.0, 3.0]]})
    kind = pa.list_(pa.float32())
    table = table.set_column(1, "vector", table["vector"].cast(kind))
    pq.write_table(table, setup.folder / "in.parquet")
    done = setup.run("backfill_tasks.scaled", *files(setup, "in.parquet", "out.parquet"))
    found = pq.read_table(setup.folder / "out.parquet")

    assert 1 == done.returncode
    assert kind == found.schema.field("output").type
    assert [[2, 4], None, [14, 3, 14]] == found["output"].to_pylist()
    assert ["a", "b", "c"] == found["key"].to_pylist()
    assert [None, "ValueError: bad vector", None] == found["error"].to_pylist()


def test_numbers_are_items_of_an_array_of_one_dimension(setup):
    """Their outputs are another one."""
    np.save(setup.folder / "in.npy", np.arange(20, 60))
    done = setup.run("backfill_tasks.double", *files(setup))

    assert 0 == done.returncode, done.stderr
    assert np.array_equal(2 * np.arange(20, 60), np.load(setup.folder / "out.npy"))


def test_an_array_is_an_iterable_of_items(app, setup):
    """In Python, too: a file that is mapped to memory, and each answer has an array."""
    np.save(setup.folder / "in.npy", vectors(50))
    items = np.load(setup.folder / "in.npy", mmap_mode="r")
    found = list(app.scaled.backfill(items))

    assert [""] * 50 == [each.error for each in found]
    assert np.array_equal(2 * vectors(50), np.stack([each.output for each in found]))
    assert np.array_equal(items, np.stack([each.item for each in found]))
