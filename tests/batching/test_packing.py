"""How many waiting requests one batch takes, where requests have many rows."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.policy import BatchPolicy

SIZE = st.integers(min_value=1, max_value=9)


def batches(size: int, *rows: int, urgencies: tuple[int, ...] = ()) -> list[list[int]]:
    """Return the rows of each request, batch by batch, until the queue is empty."""
    batcher = waiting(size, *rows, urgencies=urgencies)
    return [[request.rows for request in batch.requests] for batch in drained(batcher)]


def waiting(size: int, *rows: int, urgencies: tuple[int, ...] = ()) -> Batcher[int]:
    """Return a batcher in which requests with these rows wait."""
    batcher: Batcher[int] = Batcher(BatchPolicy(size, low_priority_share=0.0))
    for n, each in enumerate(rows):
        urgency = urgencies[n] if urgencies else 0
        batcher.add(Request(n, arrived=0.0, urgency=urgency, rows=each))
    return batcher


def drained(batcher: Batcher[int]) -> list[Batch[int]]:
    """Return all batches that leave when no more requests come."""
    left = []
    while isinstance(decision := batcher.next(inf), Batch):
        left.append(decision)
    return left


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([64], [[64]]),
        ([40, 24], [[40, 24]]),
        ([1] * 65, [[1] * 64, [1]]),
        ([40, 40], [[40], [40]]),
        ([1, 64], [[1], [64]]),
        ([10, 60, 60], [[10], [60], [60]]),
        ([40] * 7, [[40, 40, 40], [40, 40, 40], [40]]),
        ([60, 60, 60], [[60], [60], [60]]),
        ([1, 64, *[1] * 65], [[1, 64, *[1] * 63], [1, 1]]),
        ([30, 40, 10, 60, 60], [[30], [40, 10], [60], [60]]),
        ([30, 40, 10, 40, 8, 8], [[30, 40, 10, 40, 8], [8]]),
        ([256], [[256]]),
        ([250, *[1] * 10], [[250, *[1] * 6], [1] * 4]),
        ([250, 4, 4], [[250, 4], [4]]),
        ([10, 256], [[10], [256]]),
        ([256, 256], [[256], [256]]),
        ([250, 250], [[250], [250]]),
        ([250, 7, 1], [[250], [7, 1]]),
        ([*[1] * 64, 40, 40, 40], [[1] * 64, [40, 40, 40]]),
    ],
    ids=str,
)
def test_batches_of_64(rows: list[int], expected: list[list[int]]):
    """A batch is counted in rows; only a request too large for one call is split."""
    assert expected == batches(64, *rows)


def test_urgent_requests_go_first_whatever_their_rows():
    """An urgent chunk overtakes; the rest of its last model call is filled with the next."""
    assert [[5, 1, 1, 1], [1]] == batches(8, 1, 1, 1, 1, 5, urgencies=(3, 3, 3, 3, 0))


def test_smaller_request_of_less_urgency_overtakes_none():
    """Where an urgent request does not fit, one of less urgency does not take its place."""
    assert [[5], [5, 1]] == batches(8, 5, 5, 1, urgencies=(0, 0, 1))


def test_waiting_rows_are_counted():
    """Each waiting request, also one that runs alone, counts with all its rows."""
    batcher = waiting(8, 3, 4)
    batcher.add(Request(2, arrived=0.0, alone=True, rows=20))

    assert (3, 27) == (len(batcher), batcher.rows)
    assert Reason.ALONE == batcher.next(0.0).reason  # type: ignore[union-attr]
    assert (2, 7) == (len(batcher), batcher.rows)
    assert [0, 1] == [request.item for request in batcher.clear()]
    assert (0, 0, []) == (len(batcher), batcher.rows, batcher.clear())


def test_full_is_a_matter_of_rows():
    """One chunk of a batch's size is a full batch."""
    assert not waiting(8, 3, 4).is_full
    assert waiting(8, 8).is_full
    assert Reason.FULL == waiting(8, 3, 5).next(0.0).reason  # type: ignore[union-attr]


@given(SIZE, st.lists(st.integers(min_value=1, max_value=30)), st.data())
def test_promises_of_rows(size: int, rows: list[int], data: st.DataObject):
    """
    No request is lost or overtaken; each batch takes all that fits, and not more.

    At most one of its requests continues in further model calls.  One too large for a
    single call is the first of its batch, so no earlier request waits for it; behind it
    only the last call is filled.
    """
    urgencies = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    batcher = waiting(size, *rows, urgencies=tuple(urgencies))
    left = drained(batcher)
    order = sorted(range(len(rows)), key=lambda n: urgencies[n])

    assert order == [item for batch in left for item in batch.items]
    assert sum(rows) == sum(batch.rows for batch in left)
    for batch in left:
        check_calls(size, [request.rows for request in batch.requests])
    for batch, following in pairwise(left):
        assert following.requests[0].rows > -batch.rows % size


def check_calls(size: int, rows: list[int]) -> None:
    """One batch has at most one request over several calls, and has these for a reason."""
    ends = list(accumulate(rows))
    crossing = [
        n for n, end in enumerate(ends) if (end - 1) // size > (end - rows[n]) // size
    ]  # whose first and last rows are in different calls
    calls = -(-ends[-1] // size)

    assert len(crossing) <= 1
    assert all(n == 0 for n, each in enumerate(rows) if each > size)
    assert calls <= max(2, -(-rows[0] // size))
    if calls > 1:
        (crosser,) = crossing
        assert calls - 1 == (ends[crosser] - 1) // size  # the last call has some of it


@given(SIZE, st.lists(st.integers(min_value=1, max_value=30), min_size=1))
def test_two_calls_are_shared_only_where_that_saves_calls(size: int, rows: list[int]):
    """There are never more calls than if each batch took what fits into one, and nothing else."""
    calls = sum(-(-sum(batch) // size) for batch in batches(size, *rows))

    assert -(-sum(rows) // size) <= calls <= _one_call_each(size, rows)


def _one_call_each(size: int, rows: list[int]) -> int:
    calls, room = 0, 0
    for each in rows:
        if each > room:
            calls += -(-each // size)
            room = -each % size
        else:
            room -= each
    return calls


@given(SIZE, st.integers(min_value=1, max_value=100), st.lists(st.integers(1, 9), max_size=60))
def test_chunk_of_one_call_delays_others_by_one_call_at_most(
    size: int, before: int, others: list[int]
):
    """With chunks of up to a batch's size, a request waits for one model call beside its own."""
    rows = [min(each, size) for each in others]
    for batch in batches(size, *[1] * (before % size), *rows):
        assert sum(batch) <= 2 * size
