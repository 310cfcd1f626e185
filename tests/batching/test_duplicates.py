"""Equal requests leave together, in one row, and none is lost or late."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.batch import Batch, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.duplicates import Duplicates
from celery_batch.batching.policy import BatchPolicy

#: An item: its key, or None for one that equals no other, and what tells it from others.
Item = tuple[str | None, int]


def queue(size: int = 2, most: int = 100, cost: float | None = None) -> Duplicates[Item]:
    """Return an empty queue whose batches have so many rows, and may be padded to such a cost."""
    policy = BatchPolicy(
        size, max_wait=10.0, linger=5.0, max_batch_cost=cost, padded=cost is not None
    )
    batcher: Batcher[Item] = Batcher(policy)
    return Duplicates(batcher, lambda item: item[0], most)


def add(waiting: Duplicates[Item], *items: Item, **options: Any) -> None:
    """Add items in this order; the number of each is its time of arrival."""
    for item in items:
        waiting.add(Request(item, float(item[1]), **options))


def items(batch: Batch[Item] | Wait) -> list[Item]:
    """Return the items of a batch, which is one."""
    assert isinstance(batch, Batch)
    return batch.items


def test_equal_requests_leave_together():
    """They add no row, so that others fill the batch."""
    waiting = queue()
    add(waiting, ("a", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5))
    before = len(waiting)
    batch = waiting.next(6.0)

    assert 5 == before
    assert [("a", 1), ("b", 3), ("a", 2), ("a", 5)] == items(batch)
    assert isinstance(batch, Batch)
    assert [1, 1, 0, 0] == [each.rows for each in batch.requests]
    assert 2 == batch.rows
    assert 1 == len(waiting)
    assert [("c", 4)] == items(waiting.next(100.0))
    assert 0 == len(waiting)


def test_equal_requests_do_not_fill_a_batch():
    """There is still one row: the slot waits for more, no longer than without them."""
    waiting = queue()
    add(waiting, ("a", 1), ("a", 2), ("a", 3))

    assert Wait(2.0) == waiting.next(4.0)
    assert [("a", 1), ("a", 2), ("a", 3)] == items(waiting.next(6.0))


def test_it_is_known_whether_an_equal_request_waits():
    """Only while it does; an item without a key equals none."""
    waiting = queue(1)
    add(waiting, ("a", 1), (None, 2))
    equal = [waiting.has_equal(item) for item in (("a", 3), ("b", 3), (None, 3))]
    waiting.next(4.0)

    assert [True, False, False] == equal
    assert not waiting.has_equal(("a", 5))


def test_those_that_come_later_are_another_row():
    """What has left does not wait any more."""
    waiting = queue(1)
    add(waiting, ("a", 1))
    waiting.next(2.0)
    add(waiting, ("a", 3))

    assert [("a", 3)] == items(waiting.next(4.0))


def test_requests_without_a_key_equal_no_other():
    """Each is a row."""
    waiting = queue()
    add(waiting, (None, 1), (None, 2))

    assert [(None, 1), (None, 2)] == items(waiting.next(3.0))


def test_a_request_that_runs_alone_equals_no_other():
    """It may kill its process; those that wait for an answer must not be with it."""
    waiting = queue()
    add(waiting, ("a", 1), ("a", 2))
    add(waiting, ("a", 3), alone=True)

    assert [("a", 3)] == items(waiting.next(4.0))
    assert [("a", 1), ("a", 2)] == items(waiting.next(100.0))


def test_a_more_urgent_request_takes_the_others_along():
    """It waits for none of them, and they need no row of their own any more."""
    waiting = queue(1)
    add(waiting, ("b", 1), ("a", 2), ("a", 3), urgency=5)
    add(waiting, ("a", 4), urgency=0)
    batch = waiting.next(5.0)

    assert {("a", 2), ("a", 3), ("a", 4)} == set(items(batch))
    assert ("a", 4) == items(batch)[0]
    assert [("b", 1)] == items(waiting.next(6.0))


def test_a_less_urgent_request_waits_beside():
    """Its answer comes for nothing."""
    waiting = queue(1)
    add(waiting, ("a", 1), ("b", 2), urgency=0)
    add(waiting, ("b", 3), urgency=5)

    assert [("a", 1)] == items(waiting.next(4.0))
    assert [("b", 2), ("b", 3)] == items(waiting.next(5.0))


def test_a_batch_has_a_limit_of_requests():
    """The others stay, as one row of a later batch."""
    waiting = queue(2, most=3)
    add(waiting, *(("a", n) for n in range(5)), ("b", 5), ("c", 6))

    assert [("a", 0), ("b", 5), ("a", 1)] == items(waiting.next(7.0))
    assert [("c", 6), ("a", 2), ("a", 3)] == items(waiting.next(8.0))
    assert [("a", 4)] == items(waiting.next(100.0))


@pytest.mark.parametrize(
    ("unwanted", "left"),
    [
        ({1}, [("a", 2), ("a", 3)]),
        ({2}, [("a", 1), ("a", 3)]),
        ({1, 2}, [("a", 3)]),
        ({1, 2, 3}, []),
        ({2, 3}, [("a", 1)]),
    ],
)
def test_those_that_are_left_take_the_place_of_the_first(unwanted: set[int], left: list[Item]):
    """Whichever of equal requests is removed, the others run."""
    waiting = queue()
    add(waiting, ("a", 1), ("a", 2), ("a", 3))
    removed = waiting.remove(lambda request: request.item[1] in unwanted)
    found = waiting.next(100.0)

    assert unwanted == {request.item[1] for request in removed}
    assert left == (items(found) if left else [])
    assert isinstance(waiting.next(100.0), Wait)


def test_followers_may_be_released():
    """Each waits in a row of its own, and equal ones that come later follow again."""
    waiting = queue(4)
    add(waiting, ("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5))
    waiting.release()
    add(waiting, ("b", 6), ("b", 7))

    assert 7 == len(waiting)
    assert [("a", 1), ("b", 3), ("a", 2), ("b", 4)] == items(waiting.next(8.0))
    assert [("a", 5), ("b", 6), ("b", 7)] == items(waiting.next(100.0))


def test_all_can_be_removed():
    """Nothing of them is left behind."""
    waiting = queue()
    add(waiting, ("a", 1), ("b", 2), ("a", 3))

    assert [("a", 1), ("a", 3), ("b", 2)] == [each.item for each in waiting.clear()]
    assert 0 == len(waiting)
    add(waiting, ("a", 4))
    assert [("a", 4)] == items(waiting.next(100.0))


ADD = st.tuples(
    st.just("add"), st.sampled_from(["a", "b", "c", "d", None]), st.integers(0, 2), st.booleans()
)
STEPS = st.lists(ADD | st.tuples(st.sampled_from(["next", "remove"]), st.sets(st.integers(0, 60))))


@pytest.mark.no_cover
@given(STEPS, st.integers(1, 3), st.integers(3, 5), st.sampled_from([None, 3.0]))
def test_each_request_leaves_once(steps: list[Any], size: int, most: int, cost: float | None):
    """Whatever happens: in batches within both limits, with all that equal it and wait."""
    waiting, number = queue(size, most, cost), 0
    present: dict[Item, bool] = {}
    for kind, *about in [*steps, *[("next", set())] * 200]:
        if kind == "add":
            key, urgency, alone = about
            present[key, number] = alone
            length = float("abcd".find(key or "a") + 1)
            add(waiting, (key, number), urgency=urgency, alone=alone, cost=length)
            number += 1
        elif kind == "remove":
            (unwanted,) = about
            gone = [each.item for each in waiting.remove(lambda each: each.item[1] in unwanted)]  # noqa: B023
            assert sorted(gone, key=str) == sorted(
                (item for item in present if item[1] in unwanted), key=str
            )
            for item in gone:
                del present[item]
        elif isinstance(batch := waiting.next(number + 100.0), Batch):
            assert len(batch.items) == len(set(batch.items)) <= max(most, size)
            assert batch.rows <= size
            for item in batch.items:
                del present[item]
            if len(batch) < most and not batch.is_suspect:
                keys = {key for key, _ in batch.items if key is not None}
                assert not [key for (key, _), alone in present.items() if key in keys and not alone]

    assert not present
