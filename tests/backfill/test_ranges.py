"""A set of numbers that is kept as ranges."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.backfill.checkpoint import RangeSet


@given(st.lists(st.integers(0, 40), unique=True))
def test_ranges_are_the_numbers_that_were_added(numbers):
    """Whatever the order, exactly these are in, and ranges never touch."""
    ranges = RangeSet()
    for number in numbers:
        ranges.add(number)

    assert sorted(numbers) == [n for n in range(42) if n in ranges]
    assert len(numbers) == len(ranges)
    found = list(ranges)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(found))
