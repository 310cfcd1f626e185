"""The figures of the documents are those that were measured."""

from __future__ import annotations

import re

from bench.reports.figures import load, pages, stale


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
