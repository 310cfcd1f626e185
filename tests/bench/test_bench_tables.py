"""Tables and goals as documents show them."""

from __future__ import annotations

import pytest

from bench.all_cases import CASES
from bench.tables import Goal, ResultTable, goals_table, where


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


def test_a_column_without_any_cell_is_left_out():
    """Older records have no spread: their tables have no empty column for it."""
    table = ResultTable("Speed", ("who", "items/s", "spread"), [("ours", "3,000", "")])

    assert "| who | items/s |\n| --- | --: |\n| ours | 3,000 |" in table.markdown()


OLD = {
    "date": "2026-11-21", "cores": 2, "memory_gib": 24, "load": 0.7, "rounds": 1, "share": 1.0,
    "python": "3.11.7", "celery": "5.7.0",
}  # fmt: skip


def test_where_says_all_that_a_record_has():
    """The line below a table has processor, versions and commit; an older record has fewer."""
    new = {**OLD, "cpu": "Xeon", "kombu": "5.7.0", "redis": "8.1.0", "redis_server": "7.0.15"}
    new |= {"commit": "abc123", "peers": {"celery": "5.6.3"}}
    start = (
        "Measured 2026-11-21 on 2 cores{} with 24 GiB, load 0.7 before; 1 round, 100% of the items"
    )

    assert start.format("") + "; Python 3.11.7, Celery 5.7.0." == where(OLD)
    assert start.format(" (Xeon)") + (
        "; Python 3.11.7, Celery 5.7.0, kombu 5.7.0, redis-py 8.1.0, Redis 7.0.15;"
        " the peers with celery 5.6.3; commit abc123."
    ) == where(new)


def test_drains_show_both_calls_with_their_spread_and_compare_with_the_best():
    """Bulk calls and single ones have a row each; a goal holds ours against the faster peer."""
    rows = [
        ("pure", "", 3864.0), ("ours", "delay_many", 3600.0), ("ours", "delay", 2000.0),
        ("RedisStreamer", "submit of all", 3000.0), ("RedisStreamer", "submit of one", 2500.0),
        ("celery-batches", "group", 900.0),
    ]  # fmt: skip
    cpu = {"client_cpu": 0.0, "worker_cpu": 0.0}
    data = {
        "rows": [
            {"kind": kind, "call": call, "workers": 1, "n": 10, "rate": rate, **cpu}
            | {"rates": [rate - 5, rate, rate + 5]}
            for kind, call, rate in rows
        ]
    }

    (table,) = CASES["cost"].tables(data)

    assert "2,995 to 3,005" in table.markdown()
    assert ["delay_many", "delay"] == [row[1] for row in table.rows if row[0] == "celery_batch"]
    goals = {goal.what: goal.measured for goal in CASES["cost"].goals(data)}
    assert 1.2 == goals['"cost", delay_many: over the best peer']


def test_tasks_of_the_benchmark_join_no_other_app(in_python):
    """Celery gives shared tasks to every app of a process, and warns of those that have a queue."""
    program = """
import bench.all_cases
from celery import Celery
print(*(name for name in Celery("another").tasks if name.startswith("bench.")))
"""
    assert "" == in_python(program).strip()
