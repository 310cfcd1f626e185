"""Tables and goals as documents show them."""

from __future__ import annotations

import pytest

from bench.tables import Goal, ResultTable, goals_table


@pytest.mark.parametrize(
    ("measured", "met"),
    [(None, "not measured"), (0.79, "no"), (0.80, "yes"), (0.95, "aim")],
    ids=["none", "below", "bound", "aim"],
)
def test_goal_with_a_lower_bound(measured, met):
    """A goal is reached at its bound, and the aim is better still."""
    assert met == Goal("of pure", measured, 0.80, 0.95).met


@pytest.mark.parametrize(
    ("measured", "met"), [(5.1, "no"), (5.0, "yes"), (2.9, "aim")], ids=["above", "bound", "aim"]
)
def test_goal_with_an_upper_bound(measured, met):
    """Where less is better, the bound is the most it may be."""
    assert met == Goal("lone request", measured, 5, 3, " ms", most=True).met


def test_sheet_as_markdown():
    """A table in a document has its title, its bars and its notes."""
    table = ResultTable("Speed", ("who", "items/s"), [("ours", "3,000")], ("Medians.",))

    assert (
        "**Speed**\n\n| who | items/s |\n| --- | --: |\n| ours | 3,000 |\n\nMedians."
        == table.markdown()
    )


def test_goals_as_a_table():
    """Each goal is a row with what was measured, what is wanted and whether it is met."""
    table = goals_table([Goal("noop", 2.614, 2.5, 5, " times")])

    assert [("noop", "2.61 times", "at least 2.5 times", "5 times", "yes")] == table.rows
