"""Files of every form are read and written as they are."""

from __future__ import annotations

import io
import json

import pytest

from celery_batch.backfill.inputs import Input
from celery_batch.backfill.outputs import format_of, write_output
from celery_batch.errors import BackfillError

RECORDS = [
    {"position": 0, "key": "a", "output": {"x": [1]}},
    {"position": 1, "key": "b", "output": "text, with comma"},
    {"position": 2, "key": "c", "error": "ValueError: no"},
]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_is_written_can_be_read(tmp_path, kind):
    """An output of any form is an input of that form, with key, output or error."""
    out = tmp_path / f"out.{kind}"
    write_output(out, RECORDS, format_of(out))

    found = list(Input(str(out)).records())
    assert ["a", "b", "c"] == [record["key"] for record in found]
    assert "ValueError: no" == found[2]["error"]
    assert "text, with comma" == found[1]["output"]
    first = found[0]["output"]
    assert {"x": [1]} == (first if kind == "jsonl" else json.loads(first))
    assert [out] == list(tmp_path.iterdir())


def test_standard_input_is_read_line_by_line(monkeypatch):
    """A dash is standard input, in JSON lines; blank lines are none."""
    monkeypatch.setattr("sys.stdin", io.StringIO('"a"\n\n"b"\n'))

    assert ["a", "b"] == list(Input("-").records())


def test_a_folder_is_read_in_order(tmp_path):
    """Files below it are records, hidden ones are none."""
    (tmp_path / "deep").mkdir()
    for name in ("b", "deep/a", ".hidden"):
        (tmp_path / name).write_bytes(name.encode())

    records = list(Input(str(tmp_path)).records())
    assert [("b", b"b"), ("deep/a", b"deep/a")] == [(each["key"], each["file"]) for each in records]
    assert 2 == Input(str(tmp_path)).count()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("in.jsonl", '1\n{"a"\n', "line 2 is not JSON"),
        ("in.csv", "a,b\n1,2\n3\n", "line 3 has not 2 fields like the first"),
        ("in.csv", 'a,b\n1,"2\n', "unexpected end of data"),
        ("in.parquet", "nothing", "Parquet"),
        ("in.jsonl", "\udcff", "cannot be read: 'utf-8' codec"),
        ("in.csv", "\udcff", "cannot be read: 'utf-8' codec"),
    ],
    ids=["json", "short", "quote", "parquet", "bytes in json", "bytes in csv"],
)
def test_what_cannot_be_read_is_named(tmp_path, name, text, words):
    """The error says which file, which line, and what is wrong."""
    path = tmp_path / name
    path.write_text(text, errors="surrogateescape")

    with pytest.raises(BackfillError, match=f"{name}.*{words}"):
        list(Input(str(path)).records())


def test_large_fields_and_marks_of_windows_are_read(tmp_path):
    """A field of CSV may be large, and a spreadsheet's mark is no part of the first name."""
    path = tmp_path / "in.csv"
    path.write_text(f"\ufeffid,text\n1,{'x' * 200_000}\n")

    assert [{"id": "1", "text": "x" * 200_000}] == list(Input(str(path)).records())


def test_names_of_files_may_be_any_bytes(tmp_path):
    """A name that is no text is still told from another."""
    (tmp_path / "\udcff").write_bytes(b"1")

    assert ["\udcff"] == [record["key"] for record in Input(str(tmp_path)).records()]
    assert 64 == len(Input(str(tmp_path)).identity)


def test_inputs_are_told_apart(tmp_path):
    """Another size or another beginning is another input."""
    path = tmp_path / "in.jsonl"
    path.write_text("1\n")
    first = Input(str(path)).identity
    path.write_text("2\n")

    assert first != Input(str(path)).identity


def test_parquet_knows_its_rows(tmp_path):
    """How many rows there are is known before they are read."""
    out = tmp_path / "out.parquet"
    write_output(out, RECORDS, "parquet")

    assert 3 == Input(str(out)).count()
