"""A second try at failed rows, whatever has happened before."""

from __future__ import annotations

import json

import pytest

from celery_batch.backfill.checkpoint import Checkpoint, Failures
from celery_batch.backfill.outputs import write_output
from celery_batch.errors import BackfillError

FAILED = {"position": 1, "key": "b\u2028b", "line": 3, "error": "ValueError: \u2029\x85"}
RECORDS = [{"position": 0, "key": "a", "line": 2, "output": None}, FAILED]


def test_words_may_have_any_characters(tmp_path):
    """Some characters end a line for Python only."""
    failures = Failures(tmp_path / "out.jsonl")
    write_output(tmp_path / "out.jsonl", lambda: RECORDS, "jsonl")
    failures.write(RECORDS)

    assert {1: "b\u2028b"} == failures.keys()


def test_rows_are_counted_as_people_count(tmp_path):
    """From 1: the line in an editor, the row of the input, and that of the output."""
    failures = Failures(tmp_path / "out.jsonl")
    nameless = {"position": 3, "key": "4", "line": 0, "error": "KeyError: 'a'"}
    failures.write([nameless, *RECORDS])
    found = [json.loads(line) for line in failures.path.read_text().split("\n") if line]

    first = {"key": "4", "error": "KeyError: 'a'", "input_row": 4, "output_row": 1}
    second = {"line": 3, "input_row": 2, "output_row": 3}
    assert [first, {"key": FAILED["key"], "error": FAILED["error"], **second}] == found


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_fails_again_keeps_its_place(tmp_path, kind):
    """A second try that is of no use leaves the same words."""
    out = tmp_path / f"out.{kind}"
    failures = Failures(out)
    write_output(out, lambda: RECORDS, kind)
    failures.write(RECORDS)
    before = failures.path.read_text()
    failures.write(failures.merged([]))

    assert before == failures.path.read_text()


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_try_that_ended_before_it_was_forgotten(tmp_path, kind):
    """Answers of rows that are not among the failed any more are in the output already."""
    out = tmp_path / f"out.{kind}"
    failures = Failures(out)
    write_output(out, lambda: RECORDS, kind)
    failures.write(RECORDS)
    answers = [{"position": 0, "key": "a", "output": 7}, {"position": 1, "key": "b", "output": 8}]

    assert 8 == list(failures.merged(answers))[1]["output"]


def test_halves_of_characters_are_written(tmp_path):
    """A name that no encoding has is no reason to lose an output."""
    records = [{"position": 0, "key": "\udcff", "output": ["\ud800"]}]
    for kind in ("jsonl", "csv", "parquet"):
        write_output(tmp_path / f"out.{kind}", lambda: records, kind)

    text = (tmp_path / "out.jsonl").read_text()
    assert {"key": "\udcff", "output": ["\ud800"]} == json.loads(text)


def test_failures_of_what_is_not_complete_are_not_run_again(tmp_path):
    """What is missing is said: the output, or the rest of it."""
    out = tmp_path / "out.jsonl"

    with pytest.raises(BackfillError, match=r"out\.jsonl: is not there; run without"):
        Failures(out).keys()

    Checkpoint.path(out).touch()

    with pytest.raises(BackfillError, match=r"out\.jsonl: is not complete yet; run without"):
        Failures(out).keys()
