"""A batch whose calls of the model are limited by cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.cost import CostLimits
from celery_batch.errors import InvalidCost
from celery_batch.runtime.runner import BatchRun, CallCost, ErrorPolicy, Runner


class Model:
    """A model that pads: it remembers the lengths of each call, and has little memory."""

    def __init__(self, memory: float = float("inf")) -> None:
        self.memory = memory
        self.calls: list[list[int]] = []

    def predict(self, lengths: list[int]) -> list[str]:
        """Return a text for each length; 13 makes it raise."""
        self.calls.append(lengths)
        if max(lengths) * len(lengths) > self.memory:
            raise MemoryError("cannot allocate")
        if 13 in lengths:
            raise ValueError("13")
        return [f"{length} is done" for length in lengths]


def cost_of_rows(columns: Any) -> list[float | InvalidCost]:
    """Return each length as its cost; a negative one has none."""
    return [float(each) if each >= 0 else InvalidCost("negative") for each in columns[0]]


def runner(model: Model, cost: float, rows: int = 99, *, padded: bool = True) -> Runner:
    """Return a runner with a limit of cost."""
    limits = CostLimits(rows, cost, padded)
    return Runner(model.predict, "model", most=rows, cost=CallCost(cost_of_rows, limits))


@given(st.lists(st.integers(-3, 30), min_size=1, max_size=40), st.integers(1, 60), st.booleans())
def test_every_row_has_its_own_outcome(lengths: list[int], cost: int, padded: bool):  # noqa: FBT001
    """In whatever order the rows run, whatever fails, and however many calls it takes."""
    model = Model()
    outcomes = runner(model, float(cost), padded=padded).run(lengths)

    for length, outcome in zip(lengths, outcomes, strict=True):
        if length < 0:
            assert isinstance(outcome.error, InvalidCost)
        elif length == 13:
            assert isinstance(outcome.error, ValueError)
        else:
            assert f"{length} is done" == outcome.unwrap()
    for call in model.calls:
        assert len(call) == 1 or (max(call) * len(call) if padded else sum(call)) <= cost


def test_calls_have_similar_lengths_and_name_their_rows():
    """What a call took belongs to the rows that were in it, wherever they stand in the batch."""
    model = Model()
    run = BatchRun(runner(model, 40.0), [[20, 3, 20, 5, 4]])
    outputs = run.call()

    assert [[3, 4, 5], [20, 20]] == model.calls
    assert [[1, 4, 3], [0, 2]] == [list(timing.part) for timing in run.timings]
    assert "20 is done" == outputs[2]


def test_what_fits_into_memory_is_learnt_in_cost():
    """After calls that were too large, later ones keep to the cost that fitted."""
    model = Model(memory=100)
    under = runner(model, 400.0)
    under.run([20] * 20)
    model.calls.clear()
    under.run([10] * 20)

    assert (100, [10, 10]) == (under.safe_size.largest, [len(call) for call in model.calls])


def test_limits_may_change_while_it_runs():
    """As an operator sets them for a running worker."""
    model = Model()
    limits = CostLimits(2, 400.0, is_padded=True)
    BatchRun(runner(model, 400.0), [[1] * 3], most=2, cost_limits=limits).call()

    assert [2, 1] == [len(call) for call in model.calls]


def test_what_is_learnt_may_be_less_than_one():
    """Costs need not be whole numbers."""
    model = Model(memory=0.3)

    def cost_of(columns: Any) -> list[float]:
        return [0.125] * len(columns[0])

    limits = CostLimits(99, 1.0, is_padded=False)
    under = Runner(lambda items: model.predict([0.125] * len(items)), "m", most=99,
                   cost=CallCost(cost_of, limits))  # fmt: skip
    under.run([None] * 8)
    model.calls.clear()
    under.run([None] * 8)

    assert [2] * 4 == [len(call) for call in model.calls]


@pytest.mark.parametrize("cost", [40.0, None])
def test_an_error_that_ends_the_run_is_that_of_the_whole_chunk(cost: float | None):
    """What has not run would break the device again; it must not be queued again for ever."""

    def broken(_: list[int]) -> list[int]:
        raise TimeoutError("too slow")

    limits = CallCost(cost_of_rows, CostLimits(2, cost or 9.0, is_padded=True))
    under = Runner(broken, "m", ErrorPolicy(interrupts=(TimeoutError,)), most=2,
                   cost=limits if cost else None)  # fmt: skip
    run = BatchRun(under, [[20, 3, 20, 5, 4]], alone=True)

    assert [TimeoutError] * 5 == [type(output.error) for output in run.call()]


def test_without_a_limit_of_cost_rows_count():
    """Where only one item's cost is limited, rows limit the calls, and what fits is in rows."""
    model = Model(memory=100)
    under = runner(model, float("inf"))
    BatchRun(under, [[20] * 8], most=8).call()

    assert ([8, 4, 4], 4) == ([len(call) for call in model.calls], under.safe_size.largest)
