"""In what a backfill differs from the one that was begun is said in words."""

from __future__ import annotations

import pytest

from celery_batch.backfill.checkpoint import (
    about_path,
    changes,
    read_about,
    write_about,
)

ABOUT = {"task": "double", "input": "12 abc", "format": "jsonl", "key": None, "field": "text"}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({}, ""),
        ({"field": "body"}, "--field was text then, and is body now"),
        ({"field": None}, "--field was text then, and is not given now"),
        ({"key": "name"}, "--key was not given then, and is name now"),
        ({"format": "csv"}, "--format was jsonl then, and is csv now"),
        ({"task": "triple"}, "TASK was double then, and is triple now"),
        ({"input": "13 abd"}, "the input has changed since"),
        ({"input": "1", "key": "a"}, "the input has changed since, and --key was not given then"),
    ],
)
def test_a_change_is_named_with_both_values(now, words):
    """The option, what it was, and what it is; no hash is shown."""
    said = changes(ABOUT, ABOUT | now)

    assert (said == "") == (words == "")
    assert said.startswith(words)


def test_what_was_not_written_down_is_not_compared():
    """What was never answered, or nothing is known of, is no other backfill."""
    assert "" == changes({"task": "double", "input": "12 abc"}, ABOUT)


@pytest.mark.parametrize("text", [None, "", "[]", '{"task": "dou'])
def test_what_cannot_be_read_is_not_known(tmp_path, text):
    """An output without that file, or with half of it, is like any other file."""
    out = tmp_path / "out.jsonl"
    if text is not None:
        about_path(out).write_text(text)

    assert {} == read_about(out)
    write_about(out, ABOUT)
    assert ABOUT == read_about(out)
