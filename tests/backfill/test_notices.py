"""What is unusual is printed at once, and once."""

from __future__ import annotations

from inspect import signature

import pytest

from celery_batch.backfill.inputs import Arguments
from celery_batch.backfill.job import Notices
from celery_batch.backfill.window import Answer, Row


def predict(text):
    """Take one parameter."""


def said(rows, error=""):
    """Return what is said of rows that all end alike."""
    lines = []
    notices = Notices(lines.append)
    for row in rows:
        notices.add([Answer(row, error=error(row) if callable(error) else error)])
    return lines


def asked(records, **options):
    """Return the rows of records."""
    return Arguments(signature(predict), **options).rows(records)


def test_the_first_error_of_each_kind_is_shown():
    """With the row's line and name, on one line, and no more than five kinds."""
    kinds = ["ValueError: no\nwords", "ValueError: again", "KeyError: 'x'", *"abcde"]
    rows = [Row(n, f"r{n}", ("text",), line=n + 2) for n in range(len(kinds))]
    lines = said(rows, lambda row: kinds[row.position])

    assert ["Line 2 (r0) failed: ValueError: no words", "Line 4 (r2) failed: KeyError: 'x'"] == (
        lines[:2]
    )
    assert 5 == len(lines)


def test_a_long_error_is_cut():
    """A line is a line."""
    (line,) = said([Row(0, "1", ("text",))], "ValueError: " + "x" * 1000)

    assert line.startswith("Row 1 failed: ValueError: xxx")
    assert line.endswith("x...")
    assert len(line) < 240


def test_a_model_that_gets_a_whole_record_is_explained():
    """What the record has, and the option that takes one of its fields; once, and first only."""
    records = [{"id": f"r{n}", "body": "good"} for n in range(3)]
    lines = said(asked(records), "AttributeError: 'dict' object has no attribute 'split'")

    hint = (
        "The record has the fields id, body, and the model got all of it;"
        " --field body gives it one of them."
    )
    assert hint == lines[1]
    assert 2 == len(lines)


@pytest.mark.parametrize(
    ("records", "options"),
    [([{"text": {"a": 1}}], {}), ([{"body": {"a": 1}}], {"field": "body"}), (["a"], {})],
    ids=["spread", "a field was named", "no record"],
)
def test_other_reasons_to_fail_have_no_hint(records, options):
    """It would be wrong."""
    assert 1 == len(said(asked(records, **options), "ValueError: no"))


def test_a_hundred_failures_at_the_beginning_are_printed():
    """Before there are a million of them; where one has succeeded nothing is printed."""
    rows = [Row(n, str(n + 1), ("text",)) for n in range(300)]
    words = "The first 100 rows have all failed; Ctrl-C ends it"

    assert 1 == sum(line.startswith(words) for line in said(rows, "ValueError: no"))
    some = said(rows, lambda row: "ValueError: no" if row.position else "")
    assert not any(line.startswith(words) for line in some)
