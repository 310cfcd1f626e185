"""The figures of the documents are those that were measured."""

from __future__ import annotations

import re

import pytest

from bench.figures import load, pages, renew, stale, value

RECORDS = {
    "cost": {
        "about": {
            "date": "2026-11-21", "cores": 2, "memory_gib": 24, "load": 0.7, "rounds": 3,
            "share": 1.0, "python": "3.11.7", "celery": "5.7.0",
        },
        "rows": [
            {"kind": "pure", "workers": 1, "rate": 3864.0, "rates": [3864.0]},
            {"kind": "ours", "workers": 1, "rate": 3648.4, "rates": [3640.0, 3648.4, 3675.0]},
            {"kind": "ours", "workers": 2, "rate": 7001.0, "rates": [7001.0]},
        ],
    }
}  # fmt: skip


def test_no_page_is_stale():
    """Each figure and table of the documents is as its record has it."""
    assert [] == stale(load())


def test_readme_and_benchmarks_have_figures_of_records():
    """The pages that quote most are not filled in by hand."""
    marked = {path.name for path in pages() if "<!-- figure: " in path.read_text()}

    assert {"README.md", "benchmarks.md", "lengths.md", "serve.md"} <= marked


def test_every_record_has_its_table_in_a_page():
    """What was measured is shown, also where others win."""
    text = "".join(path.read_text() for path in pages())
    shown = set(re.findall(r"^<!-- table: ([\w.]+)", text, re.MULTILINE))
    records = load()
    measured = {*records} - {"gpu"} | {
        f"gpu.{name}" for name, rows in records["gpu"].items() if isinstance(rows, list)
    }

    assert set() == measured - shown


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("cost.rows[pure].rate", "3,864"),
        ("cost.rows[ours][workers=1].rate / cost.rows[pure].rate as .2f", "0.94"),
        ("cost.rows[ours].rate[max] as 1 digits", "7,000"),
        ("cost.rows[ours].rates[min]", "3,640"),
        ("cost.rows[ours][max rate].rates[min]", "7,001"),
        ("cost.rows[pure].rate / 1000 * 2 as .3f", "7.728"),
        ("cost.about.date", "2026-11-21"),
    ],
)
def test_a_figure_is_named_by_its_path(expression, shown):
    """A path goes down to a number, which may be one of several, a ratio or rounded."""
    assert shown == value(RECORDS, expression)


def test_a_stale_figure_is_renewed_and_the_text_about_it_stays():
    """Only what stands between the marks is written."""
    page = "It does <!-- figure: cost.rows[pure].rate -->1<!-- end --> a second.\n"

    assert page.replace(">1<", ">3,864<") == renew(page, RECORDS)


def test_tables_side_by_side_are_renewed_each():
    """A table ends at its own mark, also where it is empty yet."""
    mark = "<!-- table: goals -->\n"
    page = f"{mark}<!-- end -->\n\nbetween\n\n{mark}old\n<!-- end -->\n"

    renewed = renew(page, {})

    assert 2 == renewed.count("**Goals**")
    assert "\nbetween\n" in renewed
    assert "old" not in renewed
    assert renewed == renew(renewed, {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "In <!-- figure: cost.rows[theirs].rate -->1<!-- end -->",
            "nothing is recorded under theirs",
        ),
        ("In <!-- figure: cost.rows[ours].rate -->1<!-- end -->", "names 2 figures"),
        ("In <!-- figure: cost.speed -->1<!-- end -->", "nothing is recorded under speed"),
        ("* <!-- figure: cost.rows[pure].rate -->1<!-- end -->", "must not begin a line"),
        ("<!-- table: bert -->\n<!-- end -->", "nothing is recorded of the case bert"),
    ],
    ids=["no row", "several", "no key", "misplaced", "no case"],
)
def test_a_figure_without_a_record_is_an_error(text, error):
    """A name that fits no record, or several, stops the check and says which it is."""
    with pytest.raises(ValueError, match=error):
        renew(text, RECORDS)
