"""Who waits goes by urgency, and by arrival where that is equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.priority_queue import PriorityQueue
from celery_batch.batching.request import Request


@given(st.lists(st.integers(min_value=-9, max_value=9)), st.integers(min_value=1, max_value=5))
def test_urgent_requests_go_first_and_equals_in_turn(urgencies: list[int], size: int):
    """Whatever comes, it leaves sorted by urgency, equals as they came, and nobody is lost."""
    line: PriorityQueue[int] = PriorityQueue()
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
    line: PriorityQueue[str] = PriorityQueue()
    line.append(Request("patient", arrived=1.0, urgency=5))
    line.append(Request("urgent", arrived=2.0, urgency=0))

    assert 1.0 == line.oldest
    assert ["urgent"] == [request.item for request in line.take(1)]
    assert 1.0 == line.oldest


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9))),
    st.integers(min_value=-1, max_value=4),
)
def test_newcomer_knows_who_goes_before_it(waiting: list[tuple[int, int]], urgency: int):
    """Before a newcomer go all who are as urgent or more so, however many rows they have."""
    line: PriorityQueue[int] = PriorityQueue()
    for n, (each, rows) in enumerate(waiting):
        line.append(Request(n, float(n), each, rows=rows))
    before = [rows for each, rows in waiting if each <= urgency]

    assert (len(before), sum(before)) == line.before(urgency)
    assert sum(rows for each, rows in waiting if each == urgency) == line.rows_of(urgency)


def places(line: PriorityQueue[str], size: int, share: float) -> str:
    """Return the names of the next batch."""
    return "".join(str(request.item) for request in line.take(size, share))


def waiting(*crowds: tuple[str, int, int]) -> PriorityQueue[str]:
    """Return a line of requests: a name each, the urgency and the rows of all."""
    line: PriorityQueue[str] = PriorityQueue()
    names = ((name, urgency, rows) for names, urgency, rows in crowds for name in names)
    for n, (name, urgency, rows) in enumerate(names):
        line.append(Request(name, float(n), urgency, rows=rows))
    return line


def test_urgent_leave_places_to_the_next():
    """As far as these fit in; nobody is overtaken by somebody smaller."""
    line = waiting(("ab", 0, 1), ("c", 3, 1), ("D", 3, 3), ("xyz", 9, 1))

    assert ["abc", "Dx", "yz"] == [places(line, 4, 0.0) for _ in range(3)]


def test_who_fills_up_costs_the_urgent_no_second_call():
    """A patient chunk that does not fit in beside an urgent request waits."""
    line = waiting(("a", 0, 1), ("XY", 9, 4))

    assert ["a", "X", "Y"] == [places(line, 4, 0.0) for _ in range(3)]


def test_share_of_each_batch_is_for_those_who_are_overtaken():
    """As many places as that comes to, as soon as it comes to one."""
    line = waiting(("abcdefghijklmnopqrst", 0, 1), ("123456", 9, 1))

    assert ["abc1", "def2", "ghi3"] == [places(line, 4, 0.25) for _ in range(3)]
    assert ["jklm", "nop4", "qrst", "56"] == [places(line, 4, 0.125) for _ in range(4)]


def test_chunk_that_is_overtaken_gets_a_batch_in_so_many():
    """Its share adds up until it is enough for all of it."""
    line = waiting(("a" * 20, 0, 4), ("X" * 20, 9, 4))

    assert "aaaXaaaXaaaX" == "".join(places(line, 4, 0.25) for _ in range(12))


def test_one_who_waits_longest_is_first_among_those_who_are_overtaken():
    """Nobody starves behind somebody of a middling urgency."""
    line = waiting(("a" * 20, 0, 1), ("1", 9, 1), ("2", 3, 1), ("3", 9, 1))

    assert ["aaa1", "aaa2", "aaa3"] == [places(line, 4, 0.25) for _ in range(3)]


CROWDS = st.lists(
    st.tuples(st.integers(min_value=0, max_value=3), st.integers(min_value=1, max_value=9)),
    max_size=6,
)


@given(
    st.lists(CROWDS, min_size=1, max_size=60),
    st.integers(min_value=1, max_value=7),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
)
def test_share_is_kept_over_any_window(
    moments: list[list[tuple[int, int]]], size: int, share: float
):
    """
    Nobody is lost or comes twice or before who came earlier and is as urgent.

    Over any window in which somebody is overtaken, those who are have their share of all
    places, but for two batches.
    """
    line: PriorityQueue[int] = PriorityQueue()
    came: dict[int, list[int]] = {}
    went: dict[int, list[int]] = {}
    debt = least = 0.0
    count = 0
    for moment in [*moments, *[[]] * 400]:
        for urgency, rows in moment:
            came.setdefault(urgency, []).append(count)
            line.append(Request(count, float(count), urgency, rows=rows))
            count += 1
        if not line:
            continue
        first = line.urgency
        is_overtaken = any(line.rows_of(urgency) for urgency in range(4) if urgency != first)
        batch = line.take(size, share)

        assert batch
        for request in batch:
            went.setdefault(request.urgency, []).append(request.item)
        debt += share * size - sum(each.rows for each in batch if each.urgency != first)
        least = min(debt, least)
        if not (is_overtaken and any(line.rows_of(each) for each in range(4) if each != first)):
            debt = least = 0.0  # nobody waits any more to whom it was due

        assert debt - least <= 2 * size, "since the moment with the least debt"

    assert came == {urgency: went.get(urgency, []) for urgency in came}
    assert 0 == len(line) == line.rows
