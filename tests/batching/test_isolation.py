"""What to do with the items of a failed batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.isolation import Bisection, SafeSize


@given(st.integers(min_value=0, max_value=200), st.none() | st.integers(1, 50), st.data())
def test_every_item_runs_until_it_succeeds_or_fails_alone(
    size: int, largest: int | None, data: st.DataObject
):
    """Each item ends in one part that succeeded, or fails alone; no part is too large."""
    bad = data.draw(st.sets(st.integers(0, max(size - 1, 0)))) if size else set()
    bisection = Bisection(size)
    succeeded, failed = [], []
    while (part := bisection.next(largest or 200)) is not None:
        assert len(part) <= (largest or size)
        if not bad & set(part):
            succeeded += part
        elif not bisection.split(part):
            failed += part

    assert sorted(bad) == failed
    assert sorted(set(range(size)) - bad) == succeeded  # in order, too


def test_abandoned_batch_returns_what_is_left():
    """The indices that have not run when the run ends early are returned in order."""
    bisection = Bisection(8)
    part = bisection.next(8)
    assert part is not None
    bisection.split(part)
    bisection.next(8)

    assert 4 == bisection.start
    assert [4, 5, 6, 7] == bisection.abandon()
    assert (None, 0) == (bisection.next(8), bisection.start)


def test_what_fits_may_be_a_cost():
    """Parts of a cost need not be whole numbers, as those of items are."""
    size = SafeSize()
    size.did_not_fit(0.5)
    assert 0.25 == size.largest
    for _ in range(32):
        size.fitted(0.25)

    assert 0.28125 == size.largest


def test_no_limit_before_memory_runs_out():
    """A model that never ran out of memory gets its batches whole."""
    size = SafeSize()
    size.fitted(64)

    assert size.largest is None


def test_safe_size_is_the_size_that_fitted():
    """After a shortage the size is halved until it fits, and stays there."""
    size = SafeSize()
    size.did_not_fit(64)
    size.did_not_fit(32)
    size.fitted(16)

    assert 16 == size.largest


def test_larger_size_is_tried_ever_more_rarely():
    """Each failed try doubles the number of good batches before the next."""
    size = SafeSize()
    size.did_not_fit(16)
    waits = []
    for _ in range(9):
        good = 0
        while size.largest == 8:
            size.fitted(8)
            good += 1
        waits.append(good)
        assert 9 == size.largest
        size.did_not_fit(9)

    first, longest = SafeSize.FIRST_INTERVAL, SafeSize.LONGEST_INTERVAL
    assert [min(first * 2**n, longest) for n in range(9)] == waits


def test_small_batches_do_not_count_as_successes():
    """Only batches of the safe size count towards a try of a larger one."""
    size = SafeSize()
    size.did_not_fit(16)
    for _ in range(10 * SafeSize.LONGEST_INTERVAL):
        size.fitted(1)

    assert 8 == size.largest


def test_memory_that_shrinks_is_noticed():
    """A size that fitted once and no longer does is not kept."""
    size = SafeSize()
    size.did_not_fit(64)
    size.fitted(32)
    size.did_not_fit(32)

    assert 16 == size.largest


def test_one_item_is_always_allowed():
    """However little memory there is, the size never falls below one."""
    size = SafeSize()
    for _ in range(8):
        size.did_not_fit(2)

    assert 1 == size.largest
