"""Numbers of what is settled, in as few words as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.amqp.acks import SettledTags


@given(st.lists(st.integers(1, 40)))
def test_it_is_a_set(tags: list[int]):
    """Whatever the order, and said twice or not, it has what was added and knows where a gap is."""
    settled = SettledTags()
    for tag in tags:
        settled.add(tag)

    assert set(tags) == {tag for tag in range(1, 50) if tag in settled}
    assert next(tag for tag in range(1, 50) if tag not in tags) == settled.floor + 1


def test_one_that_waits_costs_no_memory():
    """Behind a message that waits for its time any number of others is one stretch."""
    settled = SettledTags()
    for tag in range(2, 10_000):
        settled.add(tag)
    assert (0, 2) == (settled.floor, len(settled))

    settled.add(1)
    assert (9_999, 1) == (settled.floor, len(settled))
