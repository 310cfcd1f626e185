"""What to do about items whose batch went wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.isolation import Recovery, SafeSize, Verdict, after_loss


@given(st.integers(min_value=0, max_value=200), st.none() | st.integers(1, 50), st.data())
def test_everybody_is_run_until_they_succeed_or_stand_alone(
    size: int, largest: int | None, data: st.DataObject
):
    """Each item ends in exactly one part that went well, or convicted; parts keep within bounds."""
    bad = data.draw(st.sets(st.integers(0, max(size - 1, 0)))) if size else set()
    recovery = Recovery(size)
    answered, convicted = [], []
    while (part := recovery.next(largest or 200)) is not None:
        assert len(part) <= (largest or size)
        if not bad & set(part):
            answered += part
        elif not recovery.failed(part):
            convicted += part

    assert sorted(bad) == convicted
    assert sorted(set(range(size)) - bad) == answered  # in order, too


def test_abandoned_batch_names_who_is_left():
    """What has not been run when the run breaks off is known, in order."""
    recovery = Recovery(8)
    part = recovery.next(8)
    assert part is not None
    recovery.failed(part)
    recovery.next(8)

    assert [4, 5, 6, 7] == recovery.abandon()
    assert recovery.next(8) is None


def test_nothing_is_assumed_before_memory_runs_out():
    """A model that never ran out of memory gets its batches whole."""
    size = SafeSize()
    size.fitted(64)

    assert size.largest is None
    assert "<SafeSize unknown>" == repr(size)


def test_safe_size_is_what_fitted():
    """After a shortage the size is halved until it fits, and stays there."""
    size = SafeSize()
    size.did_not_fit(64)
    size.did_not_fit(32)
    size.fitted(16)

    assert 16 == size.largest
    assert "<SafeSize 16>" == repr(size)


def test_larger_size_is_tried_after_a_while_and_ever_more_rarely():
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

    first, longest = SafeSize.FIRST_PATIENCE, SafeSize.LONGEST_PATIENCE
    assert [min(first * 2**n, longest) for n in range(9)] == waits


def test_small_batches_say_nothing_about_larger_ones():
    """Only batches of the safe size count towards a try of a larger one."""
    size = SafeSize()
    size.did_not_fit(16)
    for _ in range(10 * SafeSize.LONGEST_PATIENCE):
        size.fitted(1)

    assert 8 == size.largest


def test_memory_that_shrinks_is_noticed():
    """What fitted once and does not any more is no measure."""
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


def test_only_a_loss_alone_convicts():
    """In company somebody may be innocent, however often it happened."""
    verdicts = [
        after_loss(losses, was_alone=was_alone, max_losses=2)
        for losses, was_alone in [(1, True), (2, False), (9, False), (2, True), (3, True)]
    ]

    assert [Verdict.ALONE] * 3 + [Verdict.POISON] * 2 == verdicts
