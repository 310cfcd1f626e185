"""One batch in several calls of the model, where a call is limited by cost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.call_plan import CallPlan
from celery_batch.batching.cost import CostLimits

limits = st.builds(CostLimits, st.integers(1, 9), st.integers(1, 90).map(float), st.booleans())
sizes = st.sets(st.integers(1, 9), min_size=1).map(lambda found: tuple(sorted(found)))


def calls(plan: CallPlan, limit: CostLimits) -> list[range]:
    """Return the calls of a whole batch, as positions in the plan's order."""
    found, start = [], 0
    while start < len(plan.order):
        stop = min(start + plan.count(start, limit), len(plan.order))
        found.append(range(start, stop))
        start = stop
    return found


@given(st.lists(st.none() | st.integers(0, 50).map(float), max_size=40), limits)
def test_every_row_with_a_cost_runs_once_and_within_the_limits(costs, limit):
    """Only a row that is too large by itself exceeds them; one without a cost does not run."""
    plan = CallPlan(costs, limit)
    parts = calls(plan, limit)

    assert [n for n, cost in enumerate(costs) if cost is not None] == sorted(plan.order)
    for part in parts:
        rows = [costs[plan.order[n]] for n in part]
        assert plan.cost(part) == (max(rows) * len(rows) if limit.is_padded else sum(rows))
        assert sum(rows) == plan.sum(part)
        assert len(rows) == 1 or (plan.cost(part) <= limit.cost and len(rows) <= limit.rows)


def test_a_batch_that_fits_runs_as_it_is():
    """Its rows keep their order, and one call is enough."""
    limit = CostLimits(4, 40.0, is_padded=True)
    plan = CallPlan([9.0, 3.0, 10.0, 5.0], limit)

    assert ((0, 1, 2, 3), 4) == (plan.order, plan.count(0, limit))


def test_a_larger_one_runs_in_calls_of_similar_lengths():
    """Sorted by length, short rows do not pay for long ones."""
    limit = CostLimits(8, 40.0, is_padded=True)
    plan = CallPlan([20.0, 4.0, 19.0, 5.0, 4.0, 40.0], limit)

    assert [[1, 4, 3], [2, 0], [5]] == [
        [plan.order[n] for n in part] for part in calls(plan, limit)
    ]


def test_without_padding_the_order_stays():
    """There is nothing to gain by another one."""
    limit = CostLimits(8, 10.0, is_padded=False)
    plan = CallPlan([9.0, 3.0, 3.0, 8.0], limit)

    assert [[0], [1, 2], [3]] == [[plan.order[n] for n in part] for part in calls(plan, limit)]


def test_what_fits_into_memory_may_be_less():
    """The limit that was found out applies to what is left of a batch that runs."""
    limit = CostLimits(8, 40.0, is_padded=True)
    plan = CallPlan([10.0] * 4, limit)

    assert 2 == plan.count(0, replace(limit, cost=20.0))


@given(
    st.lists(st.integers(0, 50).map(float), min_size=1, max_size=40),
    sizes, st.integers(1, 90).map(float), st.booleans(), st.none() | st.just(20.0),
)  # fmt: skip
def test_calls_fit_as_they_are_filled_up(costs, sizes, most, padded, filler):
    """As many rows as fit with those that fill up; too large a row has company if that is free."""
    limit = CostLimits(sizes[-1], most, padded, sizes)
    plan = CallPlan(costs, limit, filler)

    def cost_of(rows):
        missing = min(size for size in sizes if size >= len(rows)) - len(rows)
        whole = rows + missing * [rows[-1] if filler is None else filler]
        return max(whole) * len(whole) if padded else sum(whole)

    for part in calls(plan, limit):
        rows = [costs[plan.order[n]] for n in range(part.start, len(costs))][: sizes[-1]]
        allowed = max(most, cost_of(rows[:1]))
        fitting = [n for n in range(1, len(rows) + 1) if cost_of(rows[:n]) <= allowed]
        assert len(part) == fitting[-1]
        assert plan.cost(part) == cost_of(rows[: len(part)])


def test_what_fills_up_may_cost_more_than_rows():
    """A call that is too large with what fills it up may fit once it is full of rows."""
    limit = CostLimits(4, 4.0, is_padded=False, sizes=(1, 4))

    assert 1 == CallPlan([1.0] * 3, limit, 5.0).count(0, limit)
    assert 4 == CallPlan([1.0] * 4, limit, 5.0).count(0, limit)


def test_lengths_are_rounded_up():
    """A call costs what the model computes when it pads to one of its lengths."""
    limit = CostLimits(8, 64.0, is_padded=True, sizes=(1, 2, 4, 8), lengths=(8, 16))
    plan = CallPlan([3.0, 5.0, 9.0, 9.0, 9.0], limit)

    assert [4, 1] == [len(part) for part in calls(plan, limit)]
    assert (64.0, 26.0) == (plan.cost(range(4)), plan.sum(range(4)))
