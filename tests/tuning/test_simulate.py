"""Simulated requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import CostLine, Curve, Point
from celery_batch.tuning.simulate import Load, simulate

#: A model that takes one second for any batch.
SECOND = Curve((Point(1, (1.0,)), Point(8, (1.0,))))


def load(*arrivals):
    """Return requests at these times, with usual batches."""
    return Load(arrivals, (0.5,) * len(arrivals))


def test_a_single_request_takes_what_the_model_takes():
    """And the linger time of the policy."""
    seen = simulate(BatchPolicy(8, 0.5, 0.25), SECOND, load(10.0))

    assert pytest.approx(1.25) == seen.p50 == seen.p99
    assert pytest.approx(1 / 1.25) == seen.rate == seen.busy
    assert 1.0 == seen.batch_size


def test_what_comes_meanwhile_goes_together():
    """Requests that arrive while one runs are the next batch."""
    seen = simulate(BatchPolicy(8, 0.0), SECOND, load(0.0, 0.1, 0.2, 0.9))

    assert 2.0 == seen.batch_size
    assert pytest.approx(1.9) == seen.p99
    assert pytest.approx(1.0) == seen.busy


def test_a_full_batch_leaves_others_behind():
    """No batch is over its size."""
    seen = simulate(BatchPolicy(2, 0.0), SECOND, load(0.0, 0.1, 0.2, 0.3))

    assert pytest.approx(4 / 3) == seen.batch_size
    assert pytest.approx(2.7) == seen.p99


def test_the_overhead_is_added():
    """Sending takes time for each request."""
    curve = Curve(SECOND.points, overhead=0.125)

    assert 1.125 == simulate(BatchPolicy(8, 0.0), curve, load(0.0)).p50


def test_one_load_is_the_same_for_all():
    """Two rates have the same arrivals, faster or slower; two policies the very same."""
    slow, fast = Load.at(1.0, 100), Load.at(10.0, 100)

    assert slow.quantiles == fast.quantiles
    assert pytest.approx([each / 10 for each in slow.arrivals]) == fast.arrivals
    assert pytest.approx(100, rel=0.3) == slow.arrivals[-1]


def test_recorded_requests_keep_their_pattern_at_another_rate():
    """A trace is compressed in time; costs and rows stay."""
    recorded = Load.recorded([50.0, 51.0, 54.0], [1.0, 2.0, 3.0], [1, 1, 5])
    faster = recorded.faster(7.5)

    assert 0.75 == recorded.rate
    assert (0.0, 0.1, 0.4) == tuple(round(each, 6) for each in faster.arrivals)
    assert [(1.0, 1), (2.0, 1), (3.0, 5)] == [(each.cost, each.rows) for each in faster.requests()]


def test_the_costs_of_known_rows_come_again_and_again():
    """So that independent requests are as unlike as these."""
    assert (1.0, 2.0, 1.0, 2.0, 1.0) == Load.at(1.0, 5, costs=[1.0, 2.0]).costs


@pytest.mark.parametrize(("padded", "seconds"), [(False, 10 + 3 + 1), (True, 10 + 3 + 3)])
def test_a_batch_takes_what_its_cost_takes(padded, seconds):
    """Where cost is limited; with its padding, if rows are padded."""
    curve = Curve(SECOND.points, line=CostLine(10.0, 1.0, (1.0,), 8.0))
    policy = BatchPolicy(8, 0.0, max_batch_cost=8.0, padded=padded)
    simulated = Load((0.0, 0.0), (0.5, 0.5), costs=(3.0, 1.0))

    assert seconds == simulate(policy, curve, simulated).p99


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 16),
    wait=st.sampled_from([0.0, 0.001, 0.01, 0.3]),
    linger=st.sampled_from([None, 0.0, 0.002, 0.3]),
    rate=st.floats(0.1, 5000),
    seconds=st.lists(st.floats(0.0001, 0.5), min_size=1, max_size=4),
)
def test_everybody_is_answered_and_nobody_before_the_model(size, wait, linger, rate, seconds):
    """Whatever the policy, load and model: all are answered, in time that can be."""
    curve = Curve((Point(1, tuple(sorted(seconds))),))
    simulated = Load.at(rate, 200)
    seen = simulate(BatchPolicy(size, wait, linger), curve, simulated)
    span = 200 / seen.rate

    assert min(seconds) - 1e-6 <= seen.p50 <= seen.p99
    assert 1.0 <= seen.batch_size <= size
    assert 0 < seen.busy <= 1 + 1e-9
    assert simulated.arrivals[-1] - simulated.arrivals[0] <= span + 1e-6
