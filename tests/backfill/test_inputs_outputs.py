"""Files of every form are read and written as they are."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from celery_batch.backfill.inputs import Input, _at_once
from celery_batch.backfill.outputs import format_of, write_output
from celery_batch.backfill.window import Unreadable
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
    write_output(out, lambda: RECORDS, format_of(out))

    found = list(Input(str(out)).records())
    assert ["a", "b", "c"] == [record["key"] for record in found]
    assert "ValueError: no" == found[2]["error"]
    assert "text, with comma" == found[1]["output"]
    first = found[0]["output"]
    assert {"x": [1]} == (first if kind == "jsonl" else json.loads(first))
    assert [out] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("limit", "read"), [(None, 3), (2, 2), (3, 3), (9, 3)])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "npy", "folder"])
def test_a_limit_reads_the_first_records(tmp_path, kind, limit, read):
    """Of each form, and it is counted so."""
    path = tmp_path / f"in.{kind}"
    if kind == "npy":
        np.save(path, np.arange(6).reshape(3, 2))
    elif kind == "folder":
        path.mkdir()
        for name in "abc":
            (path / name).write_text(name)
    else:
        write_output(path, lambda: RECORDS, kind)
    every, source = list(Input(str(path)).records()), Input(str(path), limit=limit)

    assert str(every[:read]) == str(list(source.records()))
    assert source.count() == (None if kind == "csv" else read)


def test_a_limit_leaves_the_rest_of_standard_input(monkeypatch):
    """No more is read than is used, so a program that writes slowly is not waited for."""
    lines = iter([b"1\n", b"2\n"])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=lines))

    assert [1] == list(Input("-", limit=1).records())
    assert [b"2\n"] == list(lines)


def test_compressed_standard_input_is_named(monkeypatch):
    """It is read as it comes, and says so."""
    zipped = gzip.compress(b'"a"\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(zipped)))

    with pytest.raises(BackfillError, match="-: is compressed with gzip"):
        list(Input("-").records())


@pytest.mark.parametrize("kind", ["input", "output"])
def test_parquet_without_its_library_is_refused_at_once(tmp_path, monkeypatch, kind):
    """Before anything is read or asked, with what to install."""
    path = tmp_path / "file.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(BackfillError, match=r"pip install 'celery-batch\[parquet\]'"):
        Input(str(path)) if kind == "input" else format_of(path)


def test_a_record_says_its_line(tmp_path):
    """Where there are blank lines and headers, too; a folder's files have none."""
    (tmp_path / "in.jsonl").write_text('\n"a"\n\n"b"\n')
    (tmp_path / "in.csv").write_text('n\n"1\n2"\n3\n')
    for name, lines in (("in.jsonl", [2, 4]), ("in.csv", [2, 4])):
        source = Input(str(tmp_path / name))
        assert lines == [source.line for _ in source.records()]
    folder = Input(str(tmp_path))
    assert [0, 0] == [folder.line for _ in folder.records()]


def test_standard_input_is_read_line_by_line(monkeypatch):
    """A dash is standard input, in JSON lines; blank lines are none."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"a"\n\n"b"\n')))
    found = Input("-")
    identity = found.identity

    assert ["a", "b"] == list(found.records())
    assert identity == found.identity


def test_a_pipe_with_a_name_is_refused(tmp_path):
    """It can be read only once, and would be empty by the time that its rows are wanted."""
    os.mkfifo(tmp_path / "pipe.jsonl")

    with pytest.raises(BackfillError, match=r"--input - < .*pipe\.jsonl"):
        Input(str(tmp_path / "pipe.jsonl"))


def test_a_folder_is_read_in_order(tmp_path):
    """Files below it are records, hidden ones are none."""
    (tmp_path / "deep").mkdir()
    for name in ("b", "deep/a", ".hidden"):
        (tmp_path / name).write_bytes(name.encode())

    records = list(Input(str(tmp_path)).records())
    assert [("b", b"b"), ("deep/a", b"deep/a")] == [(each["key"], each["file"]) for each in records]
    assert 2 == Input(str(tmp_path)).count()


BAD = Unreadable("")


@pytest.mark.parametrize(
    ("name", "text", "found", "words"),
    [
        ("in.jsonl", '1\n{"a"\n3', [1, BAD, 3], "line 2 is not JSON: "),
        ("in.jsonl", "1\n\n\udcff\n3", [1, BAD, 3], "line 3 is not JSON: 'utf-8' codec"),
        ("in.jsonl", "[" * 200_000, [BAD], "line 1 is not JSON: maximum recursion"),
        ("in.csv", "a,b\n1\n3,4\n", [BAD, {"a": "3", "b": "4"}], "line 2 has 1 fields"),
        ("in.csv", "a,b\n1,2,3\n3,4", [BAD, {"a": "3", "b": "4"}], "line 2 has 3 fields"),
        ("in.csv", 'a\n"1"2\n3', [BAD, {"a": "3"}], "line 2: ',' expected after '\"'"),
        ("in.csv", "a\n\udcff\n3", [BAD, {"a": "3"}], "line 2 is not UTF-8"),
    ],
    ids=["json", "bytes in json", "deep", "short", "long", "quote", "bytes in csv"],
)
def test_a_record_that_cannot_be_read_costs_one_record(tmp_path, name, text, found, words):
    """The error says where it is and what is wrong with it, and the next one follows."""
    path = tmp_path / name
    path.write_text(text, errors="surrogateescape")
    records = list(Input(str(path)).records())

    (bad,) = (each for each in records if isinstance(each, Unreadable))
    assert bad.why.startswith(words)
    assert found == [BAD if each is bad else each for each in records]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.csv", b'a,b\n1,2\n1,"2\n3,4', "line 3 has a quote that nothing closes"),
        ("in.csv", b"a,b,a\n", "line 1 names a twice"),
        ("in.parquet", b"nothing", "Parquet"),
        ("in.jsonl", '{"a": 1}'.encode("utf-16"), "is UTF-16"),
        ("in.csv", "a,b".encode("utf-16"), "is UTF-16"),
        ("in.jsonl", gzip.compress(b"{}"), "is compressed with gzip; unpack it first"),
        ("in.jsonl.gz", gzip.compress(b"{}"), r"in.jsonl.gz \| celery ... --input - --format j"),
        ("in.csv.gz", gzip.compress(b"a\n"), r"in.csv.gz \| celery ... --input - --format csv$"),
        ("in.npy.gz", gzip.compress(b"a\n"), "is compressed with gzip; unpack it first$"),
    ],
    ids=["quote", "names", "parquet", "wide json", "wide csv", "gzip", "json", "csv", "npy"],
)
def test_what_cannot_be_read_at_all_is_named(tmp_path, name, content, words):
    """The error says which file and what is wrong; nothing is guessed."""
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(BackfillError, match=f"{name}.*{words}"):
        list(Input(str(path)).records())


def test_a_cut_off_parquet_file_is_named(tmp_path):
    """Where a page is broken, reading ends and says how far it came."""
    out = tmp_path / "out.parquet"
    pq.write_table(pa.table({"n": list(range(10_000))}), out)
    content = bytearray(out.read_bytes())
    content[100:400] = b"\xff" * 300
    out.write_bytes(content)

    with pytest.raises(BackfillError, match=r"out.parquet: cannot be read"):
        list(Input(str(out)).records())


def test_values_of_parquet_are_pythons(tmp_path):
    """Nulls, nested values, times and bytes come as they are; what Python has not is one row."""
    out = tmp_path / "out.parquet"
    when = pa.array([1_000, 1, None], pa.timestamp("ns"))
    what = pa.array([{"a": [1, None]}, None, {"a": []}])
    pq.write_table(pa.table({"when": when, "what": what, "raw": [b"\0", b"", None]}), out)
    first, second, third = Input(str(out)).records()

    time = dt.datetime(1970, 1, 1, microsecond=1)  # noqa: DTZ001 (the file's has no zone)
    assert {"when": time, "what": {"a": [1, None]}, "raw": b"\0"} == first
    assert second.why.startswith("row 2 has a value that Python has not")
    assert {"when": None, "what": {"a": []}, "raw": None} == third


def test_large_records_of_parquet_are_read_few_at_a_time(tmp_path):
    """A row group of pictures is not all in memory as Python's objects."""
    out = tmp_path / "out.parquet"
    pq.write_table(pa.table({"raw": [os.urandom(1 << 20) for _ in range(40)]}), out)

    assert 8 >= _at_once(pq.ParquetFile(out).metadata)
    assert 40 == len([*Input(str(out)).records()])


def test_tables_have_quotes_lines_and_blanks(tmp_path):
    """A field may have commas, quotes and line ends of any kind; blank lines are none."""
    path = tmp_path / "in.csv"
    path.write_bytes('id,text\r\n1,"a ""b"",\r\nc"\r\n\r\n2,ü\U0001f600\u2028x\r\n'.encode())

    wanted = [{"id": "1", "text": 'a "b",\r\nc'}, {"id": "2", "text": "ü\U0001f600\u2028x"}]
    assert wanted == list(Input(str(path)).records())


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_an_empty_file_has_no_records(tmp_path, name):
    """Nor is it an error."""
    (tmp_path / name).write_bytes(b"")

    assert [] == list(Input(str(tmp_path / name)).records())


def test_a_file_that_cannot_be_read_costs_one_record(tmp_path):
    """Of a folder's files, the others are read."""
    for name in "abc":
        (tmp_path / name).write_text(name)
    records = Input(str(tmp_path)).records()
    next(records)
    (tmp_path / "b").unlink()

    bad = Unreadable("b: No such file or directory", key="b")
    assert [bad, {"key": "c", "file": b"c"}] == list(records)


def test_lines_are_counted(tmp_path):
    """Those that are blank are none."""
    (tmp_path / "in.jsonl").write_bytes(b"1\n\n \r\n2\n3")

    assert 3 == Input(str(tmp_path / "in.jsonl")).count()


def test_large_fields_and_marks_of_windows_are_read(tmp_path):
    """A field of CSV may be large, and a spreadsheet's mark is no part of the first name."""
    path = tmp_path / "in.csv"
    path.write_text(f"\ufeffid,text\n1,{'x' * 200_000}\n")

    assert [{"id": "1", "text": "x" * 200_000}] == list(Input(str(path)).records())


def test_names_of_files_may_be_any_bytes(tmp_path):
    """A name that is no text is still different from another."""
    (tmp_path / "\udcff").write_bytes(b"1")

    assert ["\udcff"] == [record["key"] for record in Input(str(tmp_path)).records()]
    assert 64 == len(Input(str(tmp_path)).identity)


@pytest.mark.parametrize("size", [2, 1 << 16, (1 << 16) + 1, 100_001, 1 << 22, 50_000_001])
def test_inputs_are_told_apart(tmp_path, size):
    """Of files of one size those are different that differ in their beginning, middle or end."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(bytes(size))
    found = [Input(str(path)).identity]
    for first, end in ((0, 1), (size - 1, size), (size // 3, size // 3 * 2)):
        with path.open("r+b") as file:
            file.seek(first)
            file.write(b"1" * (end - first))
        found.append(Input(str(path)).identity)
    path.write_bytes(path.read_bytes() + b"1")
    found.append(Input(str(path)).identity)

    assert (4 if size == 2 else 5) == len(set(found))


def test_every_byte_of_a_usual_file_counts(tmp_path):
    """A file of at most 4 MiB is compared as a whole."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(bytes(1 << 22))
    found = {Input(str(path)).identity}
    for byte in range(0, 1 << 22, 65_521):
        with path.open("r+b") as file:
            file.seek(byte)
            file.write(b"1")
        found.add(Input(str(path)).identity)

    assert len(range(0, 1 << 22, 65_521)) + 1 == len(found)


def test_parquet_knows_its_rows(tmp_path):
    """How many rows there are is known before they are read."""
    out = tmp_path / "out.parquet"
    write_output(out, lambda: RECORDS, "parquet")

    assert 3 == Input(str(out)).count()
