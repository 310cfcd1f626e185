"""The set of rows that were answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.backfill.checkpoint import RowSet


@given(st.lists(st.integers(0, 40), unique=True))
def test_the_set_has_what_was_added(numbers):
    """Whatever the order, exactly these are in."""
    rows = RowSet()
    for number in numbers:
        rows.add(number)

    assert sorted(numbers) == [n for n in range(42) if n in rows]
    assert len(numbers) == len(rows)


def test_rows_in_order_take_no_room():
    """A set of millions of rows is as small as one of a few, once none is missing before them."""
    rows = RowSet()
    for number in (*range(1, 1000), 0):
        rows.add(number)

    assert (1000, set()) == (len(rows), rows._beyond)
