"""A second try at failed rows, whatever has happened before."""

from __future__ import annotations

import json

import pytest

from celery_batch.backfill.failures import Failures
from celery_batch.backfill.outputs import write_output

FAILED = {"position": 1, "key": "b\u2028b", "error": "ValueError: \u2029\x85"}
RECORDS = [{"position": 0, "key": "a", "output": None}, FAILED]


def test_words_may_have_any_characters(tmp_path):
    """Some characters end a line for Python and for nobody else."""
    failures = Failures(tmp_path / "out.jsonl")
    write_output(tmp_path / "out.jsonl", RECORDS, "jsonl")
    failures.write(RECORDS)

    assert ({1: 1}, {1: "b\u2028b"}) == (failures.lines(), failures.keys())


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_try_that_ended_before_it_was_forgotten(tmp_path, kind):
    """Answers of rows that are not among the failed any more are in the output already."""
    out = tmp_path / f"out.{kind}"
    failures = Failures(out)
    write_output(out, RECORDS, kind)
    failures.write(RECORDS)
    answers = [{"position": 0, "key": "a", "output": 7}, {"position": 1, "key": "b", "output": 8}]

    assert 8 == list(failures.merged(answers))[1]["output"]


def test_halves_of_characters_are_written(tmp_path):
    """A name that no encoding has is no reason to lose an output."""
    records = [{"position": 0, "key": "\udcff", "output": ["\ud800"]}]
    for kind in ("jsonl", "csv", "parquet"):
        write_output(tmp_path / f"out.{kind}", records, kind)

    text = (tmp_path / "out.jsonl").read_text()
    assert {"key": "\udcff", "output": ["\ud800"]} == json.loads(text)
