"""Numbers as spans are a set of numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.backfill.checkpoint import Spans


@given(st.lists(st.integers(0, 40), unique=True))
def test_spans_are_the_numbers_that_were_added(numbers):
    """Whatever the order, exactly these are in, and spans never touch."""
    spans = Spans()
    for number in numbers:
        spans.add(number)

    assert sorted(numbers) == [n for n in range(42) if n in spans]
    assert len(numbers) == len(spans)
    found = list(spans)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(found))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_spans_may_overlap_where_they_come_from(pairs):
    """Spans that touch or overlap become one."""
    wanted = {n for start, end in pairs for n in range(start, end)}

    assert wanted == {n for n in range(21) if n in Spans(pairs)}
