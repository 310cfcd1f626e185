"""Fixed numbers of rows and lengths: what a call costs, which can occur, which batches fit."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.batch import Request
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.cost import CostLimits, Load
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.shapes import are_ascending, most_rows, round_down, round_up
from celery_batch.errors import ConfigurationError

steps = st.sets(st.integers(1, 40), min_size=1, max_size=5).map(lambda found: tuple(sorted(found)))


@given(st.lists(st.integers(1, 40)).map(lambda found: tuple(sorted(set(found)))), st.integers(1))
def test_a_step_is_rounded_to(found, value):
    """Up to the next, down to the last; without steps a number stays what it is."""
    above, below = [n for n in found if n >= value], [n for n in found if n <= value]

    assert (above[0] if above else value) == round_up(found, value)
    if found:
        assert (below[-1] if below else 0) == round_down(found, value)
        assert (below[-1] if below else found[0]) == most_rows(found, value)
    else:
        assert value == round_down(found, value) == most_rows(found, value)


@pytest.mark.parametrize("value", [(), (1,), (1, 2, 64)])
def test_ascending_whole_numbers_are_steps(value):
    """None are steps, too."""
    assert are_ascending(value)


@pytest.mark.parametrize("value", [(0, 1), (2, 1), (1, 1), (1.5,), (True, 2), [1, 2], 8, None])
def test_nothing_else_is(value):
    """Neither other numbers, nor another order, nor another type."""
    assert not are_ascending(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_sizes": (2, 1)},
            "batch_sizes: must be a list of whole numbers from 1 up, in ascending",
        ),
        ({"batch_lengths": (0,)}, "batch_lengths: must be a list of whole numbers from 1 up"),
        ({"batch_sizes": (1, 2)}, r"max_batch_size: must be one of batch_sizes \(1, 2\), got 32"),
        ({"batch_lengths": (8,)}, "batch_lengths: needs batch_sizes"),
    ],
)
def test_contradictions_are_refused(options, message):
    """The error names the option."""
    with pytest.raises(ConfigurationError, match=message):
        BatchPolicy(**options)


def test_which_shapes_occur():
    """All sizes that max_batch_size has left; with lengths those within the limits of cost."""
    sizes, lengths = (1, 2, 4), (8, 16, 32)

    assert [(4, None), (2, None), (1, None)] == BatchPolicy(4, batch_sizes=sizes).shapes(None)
    assert [(2, None), (1, None)] == BatchPolicy(2, batch_sizes=sizes).shapes(None)
    rows = BatchPolicy(4, batch_sizes=sizes, batch_lengths=lengths).shapes(None)
    assert {(size, length) for size in sizes for length in lengths} == set(rows)
    sums = BatchPolicy(4, max_batch_cost=32, batch_sizes=sizes, batch_lengths=lengths)
    assert rows == sums.shapes(8)  # the cost may be anything, for what is known


def test_which_shapes_occur_with_padding():
    """Without those that cost too much; what is too large for a batch runs in the smallest."""
    padded = BatchPolicy(
        8, max_batch_cost=32, padded=True, batch_sizes=(2, 4, 8), batch_lengths=(4, 8, 32)
    )

    assert [(2, 32), (8, 4), (4, 8), (4, 4), (2, 8), (2, 4)] == padded.shapes(None)
    assert {(8, 4), (4, 8), (4, 4), (2, 8), (2, 4)} == set(padded.shapes(8))


@given(
    st.lists(st.tuples(st.integers(0, 45).map(float), st.sampled_from([1, 1, 1, 3]))),
    steps, steps, st.integers(1, 300), st.integers(0, 2),
)  # fmt: skip
def test_batches_fit_as_they_are_filled_up(waiting, sizes, lengths, cost, window):
    """Only a request that is too large by itself exceeds the limit."""
    policy = BatchPolicy(
        sizes[-1], max_batch_cost=cost, padded=True, sort_window=window,
        batch_sizes=sizes, batch_lengths=lengths,
    )  # fmt: skip
    batcher: Batcher[int] = Batcher(policy)
    for n, (each, rows) in enumerate(waiting):
        batcher.add(Request(n, 0.0, rows=rows, cost=each))
    found = []
    while len(batcher):
        batch = batcher.next(inf)
        found += batch.items
        size = round_up(sizes, batch.rows)
        longest = round_up(lengths, max(request.cost for request in batch.requests))
        assert len(batch) == 1 or (size * longest <= cost and batch.rows <= sizes[-1])

    assert [*range(len(waiting))] == sorted(found)


def test_a_batch_that_would_grow_beyond_the_limit_is_full():
    """Its next row would cost as much as a whole call of the next size."""
    load = Load(CostLimits(64, 64.0, True, (1, 32, 64), (1, 2)))  # noqa: FBT003
    added = [load.offer(Request(n, 0.0, cost=1.5 if n == 32 else 1.0)) for n in range(33)]

    assert [True] * 32 + [False] == added
    assert (32.0, True) == (load.cost, load.is_full)
