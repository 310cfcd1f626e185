"""Waiting requests go by urgency, and by arrival where that is equal."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.batch import Request
from celery_batch.batching.priority_queue import PriorityQueue


@given(st.lists(st.integers(min_value=-9, max_value=9)), st.integers(min_value=1, max_value=5))
def test_urgent_requests_go_first_and_equals_in_order(urgencies: list[int], size: int):
    """All requests leave, sorted by urgency, equals in the order of arrival."""
    queue: PriorityQueue[int] = PriorityQueue()
    requests = [Request(n, float(n), urgency) for n, urgency in enumerate(urgencies)]
    for request in requests:
        queue.append(request)
    taken: list[Request[int]] = []
    while queue:
        part = queue.take(size)
        assert len(part) <= size
        taken += part

    assert sorted(requests, key=lambda request: request.urgency) == taken
    assert queue.oldest is None


def test_oldest_is_the_oldest_of_any_urgency():
    """An overtaken request is still the one that has waited longest."""
    queue: PriorityQueue[str] = PriorityQueue()
    queue.append(Request("bulk", arrived=1.0, urgency=5))
    queue.append(Request("urgent", arrived=2.0, urgency=0))

    assert 1.0 == queue.oldest
    assert ["urgent"] == [request.item for request in queue.take(1)]
    assert 1.0 == queue.oldest


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9))),
    st.integers(min_value=-1, max_value=4),
)
def test_before_counts_the_requests_that_go_first(waiting: list[tuple[int, int]], urgency: int):
    """All requests that are as urgent or more so go first, however many rows they have."""
    queue: PriorityQueue[int] = PriorityQueue()
    for n, (each, rows) in enumerate(waiting):
        queue.append(Request(n, float(n), each, rows=rows))
    before = [rows for each, rows in waiting if each <= urgency]

    assert (len(before), sum(before)) == queue.before(urgency)
    assert sum(rows for each, rows in waiting if each == urgency) == queue.rows_of(urgency)


def take(queue: PriorityQueue[str], size: int, share: float) -> str:
    """Return the names of the next batch."""
    return "".join(str(request.item) for request in queue.take(size, share))


def waiting(*groups: tuple[str, int, int]) -> PriorityQueue[str]:
    """Return a queue of requests, from groups of names with their urgency and rows."""
    queue: PriorityQueue[str] = PriorityQueue()
    names = ((name, urgency, rows) for names, urgency, rows in groups for name in names)
    for n, (name, urgency, rows) in enumerate(names):
        queue.append(Request(name, float(n), urgency, rows=rows))
    return queue


def test_urgent_requests_leave_room_to_the_next():
    """As far as these fit; a smaller request never overtakes a larger one."""
    queue = waiting(("ab", 0, 1), ("c", 3, 1), ("D", 3, 3), ("xyz", 9, 1))

    assert ["abc", "Dx", "yz"] == [take(queue, 4, 0.0) for _ in range(3)]


def test_filling_up_costs_the_urgent_no_second_call():
    """A chunk that does not fit beside an urgent request waits."""
    queue = waiting(("a", 0, 1), ("XY", 9, 4))

    assert ["a", "X", "Y"] == [take(queue, 4, 0.0) for _ in range(3)]


def test_overtaken_requests_have_their_share_of_each_batch():
    """As many rows as the share comes to, as soon as it comes to one."""
    queue = waiting(("abcdefghijklmnopqrst", 0, 1), ("123456", 9, 1))

    assert ["abc1", "def2", "ghi3"] == [take(queue, 4, 0.25) for _ in range(3)]
    assert ["jklm", "nop4", "qrst", "56"] == [take(queue, 4, 0.125) for _ in range(4)]


def test_overtaken_chunk_gets_every_nth_batch():
    """Its share adds up until it is enough for all its rows."""
    queue = waiting(("a" * 20, 0, 4), ("X" * 20, 9, 4))

    assert "aaaXaaaXaaaX" == "".join(take(queue, 4, 0.25) for _ in range(12))


def test_overtaken_request_that_waits_longest_goes_first():
    """The least urgent request does not starve behind one of middling urgency."""
    queue = waiting(("a" * 20, 0, 1), ("1", 9, 1), ("2", 3, 1), ("3", 9, 1))

    assert ["aaa1", "aaa2", "aaa3"] == [take(queue, 4, 0.25) for _ in range(3)]


def test_rows_beside_urgent_ones_are_no_share_of_one_that_waits_longer():
    """Its share comes to a row although one of middling urgency fits beside each urgent batch."""
    queue = waiting(("1", 9, 1))
    left = []
    for _ in range(4):
        for urgency, letters in [(0, "aaa"), (3, "2")]:
            for letter in letters:
                queue.append(Request(letter, 99.0, urgency))
        left.append(take(queue, 4, 0.125))

    assert ["aaa2", "aaa1", "aaa2", "aaa2"] == left


ARRIVALS = st.lists(
    st.tuples(st.integers(min_value=0, max_value=3), st.integers(min_value=1, max_value=9)),
    max_size=6,
)


@given(
    st.lists(ARRIVALS, min_size=1, max_size=60),
    st.integers(min_value=1, max_value=7),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
)
def test_share_is_kept_over_any_window(
    moments: list[list[tuple[int, int]]], size: int, share: float
):
    """
    No request is lost, leaves twice, or leaves before an earlier one of the same urgency.

    Over any window in which requests are overtaken, these have their share of all rows, but
    for two batches.
    """
    queue: PriorityQueue[int] = PriorityQueue()
    came: dict[int, list[int]] = {}
    went: dict[int, list[int]] = {}
    earned = least = 0.0
    count = 0
    for moment in [*moments, *[[]] * 400]:
        for urgency, rows in moment:
            came.setdefault(urgency, []).append(count)
            queue.append(Request(count, float(count), urgency, rows=rows))
            count += 1
        if not queue:
            continue
        first = queue.urgency
        is_overtaken = any(queue.rows_of(urgency) for urgency in range(4) if urgency != first)
        batch = queue.take(size, share)

        assert batch
        for request in batch:
            went.setdefault(request.urgency, []).append(request.item)
        earned += share * size - sum(each.rows for each in batch if each.urgency != first)
        least = min(earned, least)
        if not (is_overtaken and any(queue.rows_of(each) for each in range(4) if each != first)):
            earned = least = 0.0  # no request is left that had earned it

        assert earned - least <= 2 * size, "since the moment at which least was earned"

    assert came == {urgency: went.get(urgency, []) for urgency in came}
    assert 0 == len(queue) == queue.rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=30))
def test_some_requests_can_be_removed(requests: list[tuple[int, int, bool]]):
    """The others keep their order, and their rows are counted."""
    queue: PriorityQueue[int] = PriorityQueue()
    for n, (urgency, rows, _) in enumerate(requests):
        queue.append(Request(n, float(n), urgency, rows=rows))
    removed = queue.remove(lambda request: requests[request.item][2])
    kept = [n for n, each in enumerate(requests) if not each[2]]

    assert {n for n, each in enumerate(requests) if each[2]} == {each.item for each in removed}
    assert (len(kept), sum(requests[n][1] for n in kept)) == (len(queue), queue.rows)
    assert queue.rows == queue.work_before(9)
    assert sorted(kept, key=lambda n: requests[n][0]) == [each.item for each in queue.clear()]


def test_what_overtaken_requests_have_earned_outlasts_a_removal():
    """A request that is revoked costs those that wait with it nothing; the last takes it along."""
    queue = waiting(("abcdefgh", 0, 1), ("zy", 5, 4))
    take(queue, 4, 0.25)
    queue.remove(lambda request: request.item == "y")
    take(queue, 4, 0.0)

    assert queue.earned_rows == 1.0
    queue.remove(lambda request: request.item == "z")
    assert queue.earned_rows == 0.0


class CountedRows(int):
    """A number of rows that counts how often one is added up."""

    added: ClassVar[int] = 0

    def __radd__(self, other: int) -> int:
        """Add it, and count that."""
        CountedRows.added += 1
        return int(self) + other


@pytest.mark.parametrize(("rows", "urgencies"), [(1, [0, 5]), (3, [0])])
def test_waiting_rows_are_known_without_a_look_at_each_request(rows: int, urgencies: list[int]):
    """A task with a latency target asks for them whenever a slot does."""
    queue: PriorityQueue[int] = PriorityQueue()
    for urgency in urgencies:
        for n in range(9):
            queue.append(Request(n, float(n), urgency, rows=CountedRows(rows)))
    CountedRows.added = 0
    found = queue.rows_of(0), queue.before(0), queue.work_before(0), queue.rows_of(7)

    assert (9 * rows, (9, 9 * rows), 9 * rows, 0) == found
    assert 0 == CountedRows.added
