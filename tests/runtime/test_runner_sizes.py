"""A batch whose calls of the model have fixed numbers of rows."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.cost import CostLimits
from celery_batch.errors import ItemTooLarge, OutOfMemory, WrongResultCount
from celery_batch.runtime.runner import (
    BatchRun,
    CallCost,
    ErrorPolicy,
    FixedSizes,
    Runner,
    as_outcome,
)

steps = st.sets(st.integers(1, 20), min_size=1, max_size=4).map(lambda found: tuple(sorted(found)))
PAD = 7777


class Model:
    """Remembers its calls, raises at 13, and has memory for so many rows or so much cost."""

    def __init__(self, memory: float = float("inf"), *, padded: bool = False) -> None:
        self.memory, self.padded = memory, padded
        self.calls: list[list[int]] = []

    @property
    def sizes(self) -> list[int]:
        """How many rows each call had."""
        return [len(call) for call in self.calls]

    def predict(self, items: list[int]) -> list[str]:
        """Return a text for each item."""
        self.calls.append(items)
        if (max(items) * len(items) if self.padded else len(items)) > self.memory:
            raise MemoryError("no room")
        if 13 in items:
            raise ValueError("13")
        return [f"{item} is done" for item in items]


def padding_row() -> tuple[int]:
    """Return the row that fills calls up."""
    return (PAD,)


def runner(model: Model, *sizes: int, row: bool = False, **options: Any) -> Runner:
    """Return a runner of calls of these sizes."""
    fixed = FixedSizes(sizes, padding_row if row else None)
    return Runner(model.predict, "shop.model", most=sizes[-1], fixed_sizes=fixed, **options)


def costs(columns: Any) -> list[float]:
    """Return each item as its own cost."""
    return [float(each) for each in columns[0]]


@given(st.lists(st.integers(10, 15), min_size=1, max_size=50), steps, st.booleans())
def test_every_call_has_a_size_and_every_item_its_outcome(items, sizes, row):
    """Whatever fails: halves are filled up as well, and the outputs of padding are cut."""
    model = Model()
    run = BatchRun(runner(model, *sizes, row=row), [items])
    outcomes = map(as_outcome, run.call())

    assert set(model.sizes) <= set(sizes)
    for item, outcome in zip(items, outcomes, strict=True):
        if item == 13:
            assert isinstance(outcome.error, ValueError)
        else:
            assert f"{item} is done" == outcome.unwrap()
    assert run.counts.calls == len(model.calls)
    if row:
        assert run.counts.padding_rows == sum(call.count(PAD) for call in model.calls)


def test_the_last_row_is_repeated():
    """What fills a call up is a copy of an item in it, unless there is a row for that."""
    model, other = Model(), Model()
    run = BatchRun(runner(model, 1, 4, 8), [[1, 2, 3]])
    run.call()
    runner(other, 1, 4, 8, row=True).run([1, 2, 3, 4, 5])

    assert [[1, 2, 3, 3]] == model.calls
    assert [range(3)] == [timing.part for timing in run.timings]
    assert [[1, 2, 3, 4, 5, PAD, PAD, PAD]] == other.calls


def test_every_parameter_is_filled_up():
    """The padding row has a value for each."""
    calls = []

    def predict(a: list[int], b: list[str]) -> list[int]:
        calls.append((a, b))
        return a

    Runner(predict, "m", fixed_sizes=FixedSizes((4,))).run([1, 2], ["a", "b"])
    Runner(predict, "m", fixed_sizes=FixedSizes((4,), lambda: (0, ""))).run([1, 2], ["a", "b"])

    assert ([1, 2, 2, 2], ["a", "b", "b", "b"]) == calls[0]
    assert ([1, 2, 0, 0], ["a", "b", "", ""]) == calls[1]


def test_a_bad_last_row_fails_alone():
    """Its copies fill up its own calls, never those of others."""
    model = Model()
    outcomes = runner(model, 2, 8).run([1, 2, 3, 4, 13])

    assert [True] * 4 + [False] == [outcome.error is None for outcome in outcomes]


def test_larger_batches_run_in_calls_of_the_sizes():
    """A chunk is cut to the largest size, and the last of its calls filled up."""
    model = Model()
    run = BatchRun(runner(model, 2, 4, 8), [list(range(100, 119))])
    run.call()

    assert ([8, 8, 4], 1) == (model.sizes, run.counts.padding_rows)


@pytest.mark.parametrize(
    "kind", [np.array, list, lambda row: {"row": row}], ids=["array", "list", "dict"]
)
def test_a_model_that_changes_its_rows_changes_no_other(kind):
    """The rows that fill a call up are copies of the last, which is changed once."""

    def predict(items: list[Any]) -> list[float]:
        """Take a number out of each item."""
        for item in items:
            if isinstance(item, np.ndarray):
                item -= 1  # noqa: PLW2901 (where it is)
        return [float(item[0]) if isinstance(item, np.ndarray) else taken(item) for item in items]

    def taken(item: Any) -> float:
        return float((item.pop("row") if isinstance(item, dict) else item).pop() - 1)

    under = Runner(predict, "m", fixed_sizes=FixedSizes((4,)))

    assert [1, 2, 3] == [each.value for each in under.run([kind([n]) for n in (2.0, 3.0, 4.0)])]


def test_outputs_are_checked_for_the_whole_call():
    """A model that answers the items alone, without the padding, has not kept to its contract."""
    under = Runner(lambda _: [1, 2, 3], "shop.model", fixed_sizes=FixedSizes((4,)))
    outcomes = under.run([1, 2, 3])

    words = r"3 outputs for a batch of 4 \(3 filled up with 1 more to one of batch_sizes\)"
    with pytest.raises(WrongResultCount, match=words):
        outcomes[0].unwrap()


def test_outputs_may_be_any_sequence():
    """Also one that cannot be sliced."""
    under = Runner(deque, "m", fixed_sizes=FixedSizes((4,)))

    assert [1, 2] == [outcome.unwrap() for outcome in under.run([1, 2])]


def test_an_item_that_the_model_finds_too_large_fails_alone():
    """As `padding` says it of a row that is longer than all lengths."""

    def predict(items: list[int]) -> list[int]:
        if max(items) > 256:
            raise ItemTooLarge("300 is more than 256")
        return items

    found = [each.error for each in Runner(predict, "m").run([1, 300, 2])]

    assert [type(None), ItemTooLarge, type(None)] == [type(error) for error in found]


def test_what_fits_into_memory_is_a_size():
    """After a call that did not fit, later ones have the next smaller size."""
    model = Model(memory=5)
    under = runner(model, 1, 4, 8)
    under.run([1] * 6)
    model.calls.clear()
    under.run([1] * 6)

    assert [4, 4] == model.sizes


def test_the_smallest_call_that_does_not_fit_teaches_nothing():
    """There is no smaller one; each item fails, and the next batch is tried as it is."""
    model = Model(memory=7)
    under = runner(model, 8, 16)
    outcomes = under.run([1] * 3)

    assert {OutOfMemory} == {type(outcome.error) for outcome in outcomes}
    assert under.safe_size.largest is None
    assert {8} == set(model.sizes)


def test_a_larger_size_is_tried_again():
    """Once memory is free again, calls grow back, though none has a number of rows in between."""
    model = Model(memory=5)
    under = runner(model, 4, 8)
    under.run([1] * 8)
    model.memory = 99
    for _ in range(500):
        under.run([1] * 8)

    assert 8 == model.sizes[-1]


@given(
    st.lists(st.integers(14, 40), min_size=1, max_size=40),
    steps,
    st.integers(1, 400),
    st.booleans(),
    st.booleans(),
)
def test_a_call_that_is_filled_up_keeps_to_the_limit_of_cost(items, sizes, most, padded, row):
    """Only a row that exceeds it by itself does, and its call does not cost more for others."""
    model = Model()
    cost = CallCost(costs, CostLimits(sizes[-1], float(most), padded, sizes))
    fixed = FixedSizes(sizes, (lambda: (20,)) if row else None)
    under = Runner(model.predict, "m", most=sizes[-1], cost=cost, fixed_sizes=fixed)
    run = BatchRun(under, [items])
    run.call()

    def cost_of(call: list[int]) -> int:
        return max(call) * len(call) if padded else sum(call)

    assert sorted(items) == sorted(items[index] for each in run.timings for index in each.part)
    assert sum(map(cost_of, model.calls)) == run.counts.padded_cost
    assert sum(items) == run.counts.cost
    for call, timing in zip(model.calls, run.timings, strict=True):
        first = [items[timing.part[0]]]
        alone = first + ([20] if row else first) * (sizes[0] - 1)
        assert cost_of(call) <= max(most, cost_of(alone))


def test_memory_is_learnt_as_the_cost_of_the_whole_call():
    """With its padding rows."""
    model = Model(memory=100, padded=True)
    cost = CallCost(costs, CostLimits(16, 400.0, is_padded=True, sizes=(1, 4, 16)))
    under = runner(model, 1, 4, 16, cost=cost)
    under.run([20] * 5)
    model.calls.clear()
    under.run([20] * 5)

    assert [4, 1] == model.sizes


def test_without_isolation_no_item_is_seen_twice():
    """Where the padding row fills calls up, each item is in one call, once."""
    model = Model()
    under = runner(model, 4, 8, row=True, error_policy=ErrorPolicy(isolate_failures=False))
    under.run([1, 13, 2])

    assert [[1, 13, 2, PAD]] == model.calls
