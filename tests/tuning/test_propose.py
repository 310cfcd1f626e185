"""Settings chosen from measured times."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import CostLine, Curve, Point
from celery_batch.tuning.propose import candidates, max_rate, propose
from celery_batch.tuning.simulate import Load, simulate


def linear(fixed, each, *, largest=64, spread=1.05):
    """Return the curve of a model with a cost for each batch and one for each item."""
    sizes = [1 << n for n in range(largest.bit_length())]
    usual = {size: fixed + each * size for size in sizes}
    return Curve(tuple(Point(n, (seconds, spread * seconds)) for n, seconds in usual.items()))


def test_a_model_that_gains_from_batches_gets_large_ones():
    """The largest that helps within the target, and its highest rate."""
    proposal = propose(linear(0.010, 0.0001, largest=256), 0.05, rate=500)
    chosen = proposal.chosen

    assert chosen.meets
    assert (
        128 == chosen.policy.max_batch_size
    )  # 256 reaches 6 % more, and takes 2 x 36 ms when full
    assert 5000 < chosen.max_rate
    assert chosen.forecast.p99 <= 0.05


@pytest.mark.no_cover  # the simulation takes three times as long while it is measured
def test_a_model_that_gains_nothing_gets_no_batches():
    """Of sizes that are about as good, the smaller."""
    proposal = propose(linear(0.0, 0.01), 0.2, rate=50)

    assert proposal.chosen.policy.max_batch_size == 1


@pytest.mark.no_cover  # the simulation takes three times as long while it is measured
def test_a_tight_target_keeps_batches_small():
    """A batch that takes longer than the target allows is no good, however many it holds."""
    curve = linear(0.010, 0.001)
    tight, loose = (propose(curve, latency).chosen for latency in (0.04, 0.4))

    assert tight.policy.max_batch_size < loose.policy.max_batch_size
    assert tight.max_rate < loose.max_rate


@pytest.mark.usefixtures("as_many_as_users_have")  # it is about the rarest of their latencies
@pytest.mark.no_cover  # the simulation takes three times as long while it is measured
def test_of_sizes_about_as_good_the_one_with_the_throughput():
    """If the target is reached long before batches are full, larger ones help at higher load."""
    usual = {size: 0.001 * (1 + size / 16) for size in (1, 4, 16, 64)}
    stalls = [Point(size, (*[seconds] * 9, 0.048)) for size, seconds in usual.items()]
    proposal = propose(Curve(tuple(stalls)), 0.05, rate=2)
    rates = {each.policy.max_batch_size: each.max_rate for each in proposal.sizes}

    assert rates[4] * 1.1 >= rates[64]  # though four times as many items a second can go
    assert 64 == proposal.chosen.policy.max_batch_size


def test_without_a_rate_one_is_chosen():
    """Most of the highest rate, so that the forecast is of a busy day."""
    proposal = propose(linear(0.010, 0.001), 0.1)

    assert pytest.approx(0.7 * max(each.max_rate for each in proposal.sizes)) == proposal.rate
    assert proposal.chosen.meets


def test_the_defaults_stay_where_nothing_is_gained():
    """A setting that makes no difference need not be written down."""
    chosen = propose(linear(0.010, 0.0001), 0.1, rate=1000).chosen

    assert BatchPolicy(chosen.policy.max_batch_size) == chosen.policy


def test_an_impossible_target_is_not_met():
    """The highest rate is 0 if one item alone takes too long."""
    proposal = propose(linear(0.05, 0.001, largest=4), 0.01, rate=1)

    assert not proposal.chosen.meets
    assert 0 == proposal.chosen.max_rate


def test_too_many_for_one_process_are_not_met():
    """The size with the highest rate is proposed."""
    proposal = propose(linear(0.010, 0.001), 0.1, rate=10_000)

    assert not proposal.chosen.meets
    assert max(each.max_rate for each in proposal.sizes) <= 1.1 * proposal.chosen.max_rate


@settings(max_examples=3, deadline=None)
@given(
    fixed=st.floats(0.0005, 0.05),
    each=st.floats(0.00001, 0.01),
    latency=st.floats(0.002, 0.5),
    rate=st.floats(1, 2000),
)
@pytest.mark.no_cover  # the simulation takes three times as long while it is measured
@pytest.mark.timeout(600)  # it counts what is simulated, on a machine that does more besides
def test_nothing_that_misses_is_proposed_while_something_meets(fixed, each, latency, rate):
    """Of all that is tried: if any of it meets the target, so does the proposal."""
    curve = linear(fixed, each, largest=4)
    proposal = propose(curve, latency, rate)
    tried = [
        policy
        for size in curve.sizes
        for policy in candidates(BatchPolicy(size, min(0.01, latency)), latency)
        if rate < curve.capacity(size)
    ]
    any_meets = any(simulate(policy, curve, Load.at(rate)).p99 <= latency for policy in tried)

    assert any_meets == proposal.chosen.meets
    assert proposal.chosen.meets <= (proposal.chosen.forecast.p99 <= latency)


def test_highest_rate_meets_the_target():
    """At that rate the target is met, and well beyond it is not."""
    curve, policy = linear(0.010, 0.001), BatchPolicy(16)
    rate = max_rate(policy, curve, 0.06)

    assert simulate(policy, curve, Load.at(rate)).p99 <= 0.06
    assert simulate(policy, curve, Load.at(1.1 * rate)).p99 > 0.06


@pytest.mark.no_cover  # the simulation takes three times as long while it is measured
def test_cost_is_proposed_where_it_is_limited():
    """A budget that costs the least waiting at the highest rate, not more than was measured."""
    curve = Curve((Point(1, (0.002,)),), line=CostLine(2e-3, 6e-6, (1.0, 1.05), 9000.0))
    base = BatchPolicy(1024, max_batch_cost=100.0, padded=True)
    load = partial(Load.at, costs=[8.0, 16.0, 24.0, 256.0])
    proposal = propose(curve, 0.1, base=base, load=load)

    assert [256.0 * 2**n for n in range(6)] == [
        each.policy.max_batch_cost for each in proposal.sizes
    ]
    assert 1024 <= proposal.chosen.policy.max_batch_cost <= 4096
    assert proposal.chosen.meets
    assert proposal.sizes[0].capacity < proposal.chosen.capacity


@pytest.mark.parametrize("largest", [512.0, 20_000.0])
def test_a_batch_may_hold_the_costliest_item(largest):
    """Though no item that was seen costs as much, or no batch that was measured."""
    curve = Curve((Point(1, (0.002,)),), line=CostLine(2e-3, 6e-6, (1.0, 1.05), 3000.0))
    base = BatchPolicy(1024, max_batch_cost=100.0, padded=True)
    load = partial(Load.at, costs=[8.0, 256.0])
    proposal = propose(curve, 0.1, rate=50.0, base=base, load=load, max_item_cost=largest)
    costs = [each.policy.max_batch_cost for each in proposal.sizes]

    assert largest == min(costs)
    assert largest <= proposal.chosen.policy.max_batch_cost


def test_recorded_requests_are_simulated():
    """A load in bursts needs more than one whose requests are independent."""
    arrivals = [burst + n / 1000 for burst in range(20) for n in range(50)]
    recorded = Load.recorded(arrivals, [0.0] * 1000, [1] * 1000)
    curve, policy = linear(0.010, 0.001), BatchPolicy(16)
    in_bursts = max_rate(policy, curve, 0.06, recorded.faster)

    assert 0 < in_bursts < 0.6 * max_rate(policy, curve, 0.06)
