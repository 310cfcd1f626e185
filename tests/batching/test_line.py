"""Who waits goes by urgency, and by arrival where that is equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.line import Line
from celery_batch.batching.request import Request


@given(st.lists(st.integers(min_value=-9, max_value=9)), st.integers(min_value=1, max_value=5))
def test_urgent_requests_go_first_and_equals_in_turn(urgencies: list[int], size: int):
    """Whatever comes, it leaves sorted by urgency, equals as they came, and nobody is lost."""
    line: Line[int] = Line()
    requests = [Request(n, float(n), urgency) for n, urgency in enumerate(urgencies)]
    for request in requests:
        line.append(request)
    taken: list[Request[int]] = []
    while line:
        part = line.take(size)
        assert len(part) <= size
        taken += part

    assert sorted(requests, key=lambda request: request.urgency) == taken
    assert line.oldest is None


def test_oldest_is_the_oldest_of_any_urgency():
    """A request that urgent ones overtake is still the one that has waited longest."""
    line: Line[str] = Line()
    line.append(Request("patient", arrived=1.0, urgency=5))
    line.append(Request("urgent", arrived=2.0, urgency=0))

    assert 1.0 == line.oldest
    assert ["urgent"] == [request.item for request in line.take(1)]
    assert 1.0 == line.oldest
