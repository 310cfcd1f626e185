"""What clerks have read goes to the main thread in order, except that the urgent overtake."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Empty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.executor.pipeline import HandOver


@dataclass(frozen=True)
class Ready:
    """A batch that lies ready."""

    name: int
    urgency: int


@given(st.lists(st.integers(min_value=-3, max_value=3)))
def test_batches_go_by_urgency_and_equals_in_turn(urgencies: list[int]):
    """Whatever lies ready leaves once, sorted; equals as they were read."""
    batches = [Ready(n, urgency) for n, urgency in enumerate(urgencies)]
    found = HandOver[Ready]()
    for batch in batches:
        found.put(batch)
    taken = [found.get_nowait() for _ in batches]

    assert sorted(batches, key=lambda batch: batch.urgency) == taken
    with pytest.raises(Empty):
        found.get_nowait()


def test_who_comes_later_overtakes_what_was_seen_lying():
    """The order is that of the moment in which something is taken."""
    found = HandOver[Ready]()
    first, patient, urgent = Ready(0, 0), Ready(1, 9), Ready(2, 0)
    found.put(first)
    found.put(patient)

    assert first == found.get()

    found.put(urgent)

    assert [urgent, patient] == [found.get(), found.get()]


def test_nothing_overtakes_what_is_no_batch():
    """A job of another kind, an end of the process and a word keep their place."""
    found = HandOver[object]()
    patient, error, urgent = Ready(1, 9), EOFError(), Ready(2, 0)
    for what in (patient, error, None, urgent):
        found.put(what)

    assert 4 == found.qsize()
    assert [patient, error, None, urgent] == [found.get() for _ in range(4)]
