"""Jobs go to the main thread in order, except that urgent batches overtake."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.executor.pipeline import JobQueue


@dataclass(frozen=True)
class Ready:
    """A batch that lies ready."""

    name: int
    precedence: int


@given(st.lists(st.integers(min_value=-3, max_value=3)))
def test_batches_go_by_urgency_and_equals_in_turn(urgencies: list[int]):
    """Each batch leaves once, sorted; equals in the order of reading."""
    batches = [Ready(n, urgency) for n, urgency in enumerate(urgencies)]
    queue = JobQueue()
    for batch in batches:
        queue.put(batch)
    taken = [queue.get() for _ in batches]

    assert sorted(batches, key=lambda batch: batch.precedence) == taken


def test_later_batch_overtakes_a_waiting_one():
    """The order is that of the moment in which a batch is taken."""
    queue = JobQueue()
    first, patient, urgent = Ready(0, 0), Ready(1, 9), Ready(2, 0)
    queue.put(first)
    queue.put(patient)

    assert first == queue.get()

    queue.put(urgent)

    assert [urgent, patient] == [queue.get(), queue.get()]


def test_other_jobs_are_not_overtaken():
    """An ordinary job, the end of the process and the end of reading keep their place."""
    queue = JobQueue()
    patient, error, urgent = Ready(1, 9), EOFError(), Ready(2, 0)
    for what in (patient, error, None, urgent):
        queue.put(what)

    assert [patient, error, None, urgent] == [queue.get() for _ in range(4)]
