"""From records to what a batch function takes."""

from __future__ import annotations

from inspect import signature

import pytest

from celery_batch.backfill.inputs import Arguments, some_fit
from celery_batch.backfill.window import Row, Unreadable
from celery_batch.errors import BackfillError


def one(text):
    """Take one parameter."""


def two(question, answer, lang="en"):
    """Take two parameters and an option."""


def optional(text, lang="en"):
    """Take one parameter and an option."""


def values(function, *records, **options):
    """Return the values of each record's row."""
    rows = Arguments(signature(function), **options).rows(records)
    return [row.values for row in rows]


def test_a_record_that_is_no_mapping_is_the_value():
    """Texts, numbers and lists are what the only parameter gets."""
    assert [("a",), (1,), ([2],)] == values(one, "a", 1, [2])


def test_fields_go_to_the_parameters_of_their_names():
    """A record with a field for each parameter is spread, defaults filled in."""
    record = {"id": 7, "answer": "me", "question": "who?"}

    assert [("who?", "me", "en")] == values(two, record)
    assert [("x",)] == values(one, {"text": "x", "more": 1})


def test_another_record_is_the_value_as_a_whole():
    """A mapping without the parameter's name is itself the value."""
    assert [({"body": "x"},)] == values(one, {"body": "x"})


def test_a_field_may_be_named():
    """With --field only that field goes to the model."""
    assert [("x",)] == values(one, {"body": "x"}, field="body")


def test_rows_are_named():
    """By the named field, else by id or key, else by their number; null is no name."""
    arguments = Arguments(signature(one))
    records = [{"id": 7, "text": ""}, {"key": "k", "text": ""}, "x", {"id": None, "text": ""}]
    records += [{"id": None, "key": "k", "text": ""}, {"id": 0, "text": ""}]

    assert ["7", "k", "3", "4", "k", "0"] == [row.key for row in arguments.rows(records)]
    named = Arguments(signature(one), key="name")
    found = named.rows([{"name": "n", "text": ""}, {"name": None, "text": ""}])
    assert [("n", ""), ("2", "")] == [(row.key, row.flaw) for row in found]


@pytest.mark.parametrize(
    ("function", "record", "options", "words"),
    [
        (two, {"question": "who?"}, {}, "row 1 has no field 'answer'"),
        (two, {"lang": "en"}, {}, "row 1 has no field 'answer', 'question'"),
        (optional, {"lang": "en", "body": "x"}, {}, "row 1 has no field 'text'"),
        (two, {"body": "x"}, {}, "row 1 must have the fields answer, question, it has ['body']"),
        (two, "who?", {}, "row 1 must have the fields answer, question, it has str"),
        (one, {"text": "x"}, {"field": "body"}, "row 1 has no field 'body', it has ['text']"),
        (one, {"text": "x"}, {"key": "name"}, "row 1 has no field 'name' to be named by"),
    ],
    ids=[
        "one is missing",
        "two are",
        "the rest is optional",
        "others",
        "no record",
        "no such field",
        "no such key",
    ],
)
def test_a_record_that_does_not_fit_is_named(function, record, options, words):
    """The flaw says which row, and what it should have; the others are as they are."""
    rows = [*Arguments(signature(function), **options).rows([record])]

    assert [f"InvalidRow: {words}"] == [row.flaw[: len(words) + 12] for row in rows]
    assert ["1"] == [row.key for row in rows]


def test_a_record_that_does_not_fit_is_named_by_its_line():
    """Where there are lines: that is what an editor goes to."""
    (row,) = Arguments(signature(one), field="body").rows([{"text": "x"}], lambda: 7)

    flaw = "InvalidRow: line 7 has no field 'body', it has ['text']"
    assert (flaw, "line 7") == (row.flaw, row.place)


def test_a_record_that_cannot_be_read_keeps_its_place():
    """Its flaw says why; it has its own name, or its number."""
    records = ["a", Unreadable("line 2 is not JSON"), Unreadable("gone", key="b.png")]
    found = [(row.key, row.flaw) for row in Arguments(signature(one)).rows(records)]

    bad = [("2", "InvalidRow: line 2 is not JSON"), ("b.png", "InvalidRow: gone")]
    assert [("1", ""), *bad] == found


def flawed(*flaws):
    """Return rows with these flaws."""
    return (Row(n, str(n), (), flaw) for n, flaw in enumerate(flaws))


def test_rows_of_which_some_fit_are_all_there():
    """A bad beginning is no reason to stop, if anything follows."""
    for flaws in (["InvalidRow: no", ""], [""], [], ["InvalidRow: no"] * 99 + [""]):
        assert flaws == [row.flaw for row in some_fit(flawed(*flaws))]


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "task: no such field$"), (3, "the same for the first 3 rows"), (500, "first 100 rows")],
)
def test_rows_of_which_none_fits_are_not_begun(number, words):
    """The command is wrong then, and would give a million errors."""
    with pytest.raises(BackfillError, match=words):
        some_fit(flawed(*["InvalidRow: no such field"] * number))
