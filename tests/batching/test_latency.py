"""What is learnt of how long batches take, and what follows for those with a latency target."""

from __future__ import annotations

import os
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.policies.virtual_worker import VirtualModel, VirtualWorker, poisson
from celery_batch.batching.batch import Batch, LimitReason, Plan, Reason, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.keyed_batcher import KeyedBatcher
from celery_batch.batching.latency_model import LatencyModel
from celery_batch.batching.latency_target import TargetedQueue
from celery_batch.batching.policy import BatchPolicy
from celery_batch.errors import ConfigurationError

TARGETED = BatchPolicy(64, 0.01, target_latency=0.1)


def known(a: float = 0.008, b: float = 0.001) -> LatencyModel:
    """Return a model that has seen batches of several sizes."""
    model = LatencyModel()
    teach(model, a, b)
    return model


def teach(model: LatencyModel, a: float = 0.008, b: float = 0.001, batches: int = 40) -> None:
    """Let a model see batches of several sizes."""
    for n in range(batches):
        model.observe(8 + n % 5 * 8, a + b * (8 + n % 5 * 8))


def queue_of(policy: BatchPolicy, a: float = 0.008, b: float = 0.001) -> TargetedQueue[str]:
    """Return a queue that knows its model."""
    queue: TargetedQueue[str] = TargetedQueue(Batcher(policy))
    teach(queue.model, a, b)
    return queue


def fill(queue: TargetedQueue[str], count: int, arrived: float, urgency: int = 0) -> None:
    """Add requests that were sent at one time."""
    for n in range(count):
        queue.add(Request(f"{arrived}/{n}", arrived, urgency))


def taken(queue: TargetedQueue[str], now: float, *, full_only: bool = False) -> Batch[str]:
    """Return the batch that leaves now."""
    batch = queue.next(now, full_only=full_only)
    assert isinstance(batch, Batch)
    return batch


def plan_of(batch: Batch[str]) -> Plan:
    """Return a batch's plan."""
    assert batch.plan is not None
    return batch.plan


def test_call_and_row_are_learnt_apart():
    """What a call takes and what each row takes are found from batches of several sizes."""
    model = known()

    assert (pytest.approx(0.008, rel=0.05), pytest.approx(0.001, rel=0.05)) == (model.a, model.b)
    assert pytest.approx(0.072, rel=0.02) == model.expected(64)


def test_the_cost_of_a_call_is_told_in_rows():
    """As soon as it is known, and unless a call takes the same time whatever its size."""
    flat = LatencyModel()
    for n in range(200):
        flat.observe(8 + n % 5 * 8, 0.01)

    assert pytest.approx(8, rel=0.1) == known().call_cost
    assert inf == LatencyModel().call_cost
    assert flat.call_cost > 100


@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_a_new_speed_is_learnt_within_a_few_batches(ratio: float):
    """Three batches in a row that take far longer, or shorter, are no outliers."""
    model = known()
    for _ in range(4):
        model.observe(24, ratio * 0.032)

    assert pytest.approx(ratio * 0.032, rel=0.1) == model.expected(24)
    assert pytest.approx(ratio * 0.072, rel=0.15) == model.expected(64)


def test_outliers_are_left_out():
    """One batch in twenty that takes ten times as long changes nothing."""
    model = known()
    for n in range(200):
        model.observe(8 + n % 5 * 8, (0.016 + n % 5 * 0.008) * (10 if n % 20 == 0 else 1))

    assert pytest.approx(0.072, rel=0.05) == model.expected(64)


def test_outliers_of_both_kinds_are_no_new_speed():
    """Three in a row must be on one side of what was expected."""
    model = known()
    for ratio in (3.0, 0.2, 3.0, 0.2, 3.0, 3.0):
        model.observe(24, ratio * 0.032)

    assert pytest.approx(0.032, rel=0.05) == model.expected(24)


def test_batches_of_one_size_keep_the_known_slope():
    """What was learnt from other sizes is not lost while all batches are full."""
    model = known()
    for _ in range(1000):
        model.observe(64, 0.072)

    assert pytest.approx(0.016, rel=0.1) == model.expected(8)


def test_other_sizes_are_no_new_speed():
    """A worker that starts with a backlog knows full batches alone when small ones come."""
    model = LatencyModel()
    for _ in range(16):
        model.observe(64, 0.133)
    for n in range(16):
        model.observe(4 + n % 2, 0.013 + n % 2 * 0.002)

    assert pytest.approx(0.133, rel=0.05) == model.expected(64)
    assert pytest.approx(0.013, rel=0.05) == model.expected(4)


def test_an_outlier_of_a_new_size_is_left_out():
    """No call takes longer than in proportion to its work."""
    model = known()
    model.observe(240, 30.0)

    assert pytest.approx(0.072, rel=0.02) == model.expected(64)


def test_the_largest_batch_in_time_leaves_room_for_slow_ones():
    """Noise and the time to store results count."""
    model = known()
    model.observe_overhead(0.010, 0.0)
    model._slowness, model._judged_as_of = 1.25, None

    assert pytest.approx((0.1 - 0.010) / 1.25, rel=0.01) == model.expected(model.largest(0.1))
    assert pytest.approx(0.1, rel=0.01) == model.slow(model.largest(0.1))
    assert 0.0 == model.largest(0.015)


def test_a_model_without_a_slope_has_no_largest_batch():
    """If rows take no time of their own, any number of them is in time."""
    model = LatencyModel()
    for n in range(400):
        model.observe(1 + n % 64, 0.02)
    model.b = 0.0

    assert inf == model.largest(0.1)


def test_noise_makes_batches_slow():
    """A slow batch is one that nearly all others are faster than."""
    model = known()
    for n in range(64):
        model.observe(24, 0.032 * (1.2 if n % 8 == 0 else 1.0))

    assert 1.1 < model.slowness < 1.3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_latency": 0}, "target_latency: must be seconds as a number above 0, got 0"),
        ({"target_latency": "50ms"}, "target_latency: must be seconds"),
        ({"target_latency": 0.1, "shed": 1}, "shed: must be True or False, got 1"),
        ({"shed": True}, "shed: has no effect without target_latency"),
    ],
)
def test_wrong_targets_are_refused(options: dict[str, object], words: str):
    """The error names the option and what it must be."""
    with pytest.raises(ConfigurationError, match=words):
        BatchPolicy(**options)  # type: ignore[arg-type]


def test_until_enough_is_known_the_policy_holds():
    """A cold start changes nothing."""
    queue: TargetedQueue[str] = TargetedQueue(Batcher(TARGETED))
    fill(queue, 70, 0.0)
    batch = taken(queue, 5.0)

    assert (64, Reason.FULL) == (len(batch), batch.reason)
    assert LimitReason.LEARNING is plan_of(batch).limit.why
    assert not queue.late_by(Request("late", 0.0), 5.0)


def test_a_batch_is_as_large_as_the_policy_allows_if_that_is_in_time():
    """A lower limit would gain nothing."""
    queue = queue_of(TARGETED)
    fill(queue, 64, 0.0)
    batch = taken(queue, 0.0)

    assert (64, LimitReason.POLICY) == (len(batch), plan_of(batch).limit.why)
    assert pytest.approx(0.072 * 1.0, rel=0.3) == plan_of(batch).predicted


def test_a_batch_that_would_miss_the_target_is_smaller():
    """The size is what a slow batch can have within the target."""
    queue = queue_of(TARGETED, 0.016, 0.002)
    queue.model._slowness, queue.model._judged_as_of = 1.0, None
    fill(queue, 64, 0.0)
    batch = taken(queue, 0.0)

    assert (42, Reason.FULL, LimitReason.TARGET) == (
        len(batch),
        batch.reason,
        plan_of(batch).limit.why,
    )
    assert plan_of(batch).predicted <= 0.1 + 1e-9


def test_small_changes_of_the_model_do_not_change_the_limit():
    """A new limit would have the queue of a task with a cost sorted anew."""
    queue = queue_of(TARGETED, 0.016, 0.002)
    fill(queue, 1, 0.0)
    queue.next(0.0)
    before = queue.limit
    teach(queue.model, 0.0162, 0.00202)
    queue.next(0.0)

    assert before is queue.limit


def test_fixed_sizes_are_kept_to():
    """A smaller limit is the next lower size of a ladder; rows are counted with their padding."""
    policy = BatchPolicy(64, 0.01, target_latency=0.1, batch_sizes=(8, 32, 64))
    queue = queue_of(policy, 0.016, 0.002)
    fill(queue, 40, 0.0)
    first, second = taken(queue, 0.0), taken(queue, 0.02)

    assert (32, 8) == (len(first), len(second))
    assert (32, 8) == (plan_of(first).work, plan_of(second).work)


def test_cost_is_limited_where_it_is_counted():
    """The limit and the work of a batch are in the unit of the cost, with padding."""
    policy = BatchPolicy(1024, 0.01, max_batch_cost=64, padded=True, target_latency=0.1)
    queue = queue_of(policy, 0.016, 0.002)
    for n in range(30):
        queue.add(Request(str(n), 0.0, cost=2.0 + n % 2))
    batch = taken(queue, 0.0)

    assert LimitReason.TARGET is plan_of(batch).limit.why
    assert plan_of(batch).work <= plan_of(batch).limit.work < 64
    assert max(each.cost for each in batch.requests) * len(batch) == plan_of(batch).work


def test_late_requests_run_in_batches_as_large_as_may_be():
    """The target is lost for them; the backlog is to end soon."""
    queue = queue_of(TARGETED, 0.016, 0.002)
    fill(queue, 200, 0.0)
    first, second = taken(queue, 1.0), taken(queue, 1.1)

    assert len(first) < 64
    assert (64, LimitReason.OVERLOAD) == (len(second), plan_of(second).limit.why)
    queue.clear()
    fill(queue, 64, 2.0)
    assert LimitReason.TARGET is plan_of(taken(queue, 2.0)).limit.why


def test_a_target_that_no_batch_keeps_limits_nothing():
    """Smaller batches would only be fewer answers, just as late."""
    queue = queue_of(TARGETED, 0.5, 0.001)
    fill(queue, 64, 0.0)
    batch = taken(queue, 0.0)

    assert (64, LimitReason.UNREACHABLE) == (len(batch), plan_of(batch).limit.why)
    fill(queue, 1, 0.5)
    assert isinstance(queue.next(0.5), Wait)


def test_less_urgent_requests_fill_batches_up_by_half():
    """A request that comes while such a batch runs is in time with the next one."""
    queue = queue_of(TARGETED, 0.008, 0.001)
    fill(queue, 1, 0.0)
    fill(queue, 200, 0.0, urgency=9)
    first, second = taken(queue, 0.0), taken(queue, 0.04)

    assert (LimitReason.PRIORITIES, LimitReason.PRIORITIES) == tuple(
        plan_of(each).limit.why for each in (first, second)
    )
    assert 2 * plan_of(first).limit.work * 0.001 + 0.016 <= 0.1 + 1e-9
    queue.next(60.0)
    assert LimitReason.PRIORITIES is not queue.limit.why


def test_less_urgent_requests_do_not_keep_urgent_ones_late():
    """What was late is no reason to fill batches up; where urgent ones do that, it is."""
    queue = queue_of(TARGETED, 0.008, 0.001)
    fill(queue, 1, 0.0)
    fill(queue, 200, 0.0, urgency=9)
    late, next_one = taken(queue, 1.0), taken(queue, 1.1)

    assert [LimitReason.PRIORITIES] * 2 == [plan_of(each).limit.why for each in (late, next_one)]
    fill(queue, 64, 0.0)
    taken(queue, 1.2)
    fill(queue, 64, 0.0)
    assert LimitReason.OVERLOAD is plan_of(taken(queue, 1.3)).limit.why


def test_urgent_requests_that_are_alone_are_not_limited_by_that():
    """A short model may have whole batches of less urgent ones, too."""
    queue = queue_of(TARGETED, 0.001, 0.0001)
    fill(queue, 1, 0.0)
    fill(queue, 200, 0.0, urgency=9)

    assert LimitReason.POLICY is plan_of(taken(queue, 0.0)).limit.why


def test_waiting_ends_while_the_batch_can_be_in_time():
    """However long the policy lets requests wait for others."""
    queue = queue_of(BatchPolicy(64, 5.0, 5.0, target_latency=0.1))
    fill(queue, 10, 0.0)
    wait = queue.next(0.0)

    assert isinstance(wait, Wait)
    assert wait.seconds is not None
    assert 0.05 < wait.seconds < 0.1 - 0.018
    assert Reason.TIMEOUT is taken(queue, wait.seconds).reason


def test_behind_a_running_batch_one_leaves_just_before_its_end():
    """The process finds it when it is free; until then others can join."""
    queue = queue_of(TARGETED)
    queue.model.observe_overhead(0.002, 0.0)
    fill(queue, 20, 0.0)
    first = taken(queue, 1.0)
    fill(queue, 12, 1.01)
    wait = queue.next(1.01, full_only=True)

    assert isinstance(wait, Wait)
    assert pytest.approx(0.028 - 0.002 - 0.01, rel=0.1) == wait.seconds
    second = taken(queue, 1.01 + (wait.seconds or 0) + 1e-6, full_only=True)
    assert (12, Reason.AHEAD) == (len(second), second.reason)
    assert inf == plan_of(second).began
    queue.ended(plan_of(first), 1.03)
    assert 1.03 == plan_of(second).began


def test_a_few_requests_behind_a_large_batch_wait_for_its_callers():
    """They may call again at once, and belong into the same batch."""
    queue = queue_of(TARGETED)
    fill(queue, 20, 0.0)
    first = taken(queue, 1.0)
    fill(queue, 9, 1.01)

    assert Wait(None) == queue.next(1.5, full_only=True)
    queue.ended(plan_of(first), 1.5)
    queue.ended(plan_of(first), 1.5)
    assert Wait(None) == queue.next(1.5, full_only=True)


def test_a_target_may_be_taken_away():
    """Then the queue does what any other does."""
    queue = queue_of(TARGETED, 0.5)
    queue.configured = BatchPolicy(64, 0.01)
    fill(queue, 64, 0.0)
    batch = taken(queue, 0.0)
    fill(queue, 32, 0.0)

    assert (64, LimitReason.POLICY) == (len(batch), plan_of(batch).limit.why)
    assert Wait(None) == queue.next(0.6, full_only=True)
    assert not queue.late_by(Request("late", 0.0), 5.0)
    assert pytest.approx(0.001) == getattr(queue.next(0.001), "seconds", None)


def test_what_cannot_make_it_is_known_when_it_comes():
    """All that has left and all that waits goes before it."""
    queue = queue_of(TARGETED)
    queue.model._slowness, queue.model._judged_as_of = 1.0, None
    assert not queue.late_by(Request("alone", -1.0), 0.0)
    fill(queue, 64, 0.0)
    taken(queue, 0.0)

    assert not queue.late_by(Request("early", 0.0), 0.0)
    fill(queue, 19, 0.0)
    assert pytest.approx(0.001, abs=5e-4) == queue.late_by(Request("late", 0.0), 0.0) + 0.001
    fill(queue, 10, 0.0)
    assert pytest.approx(0.011, abs=2e-3) == queue.late_by(Request("late", 0.0), 0.0)


def test_one_that_would_make_the_oldest_late_is_refused():
    """Else each batch would be late because of those that joined it last."""
    queue = queue_of(TARGETED)
    queue.model._slowness, queue.model._judged_as_of = 1.0, None
    fill(queue, 64, 0.0)
    taken(queue, 0.0)
    fill(queue, 18, 0.0)

    assert queue.late_by(Request("new", 0.05), 0.05) == 0
    fill(queue, 2, 0.05)
    assert queue.late_by(Request("new", 0.05), 0.05) > 0


def test_without_requests_no_batch_leaves():
    """Whatever was learnt."""
    assert Wait(None) == queue_of(TARGETED).next(0.0)


def test_a_stall_of_long_ago_refuses_nothing():
    """It counts for ten seconds, although few batches have ended since; then the usual does."""
    queue = queue_of(TARGETED)
    for overhead in (0.002, 0.002, 0.002, 0.09, 0.09):
        queue.model.observe_overhead(overhead, 1.0)
    fill(queue, 10, 2.0)
    taken(queue, 2.0)

    assert queue.late_by(Request("new", 10.9), 10.9) > 0
    assert 0 == queue.late_by(Request("new", 11.0), 11.0)
    assert 0.002 == queue.model.overhead

    queue.model.observe_overhead(0.003, 12.0)

    assert 0.003 == queue.model.overhead


def test_slow_calls_of_long_ago_refuse_nothing():
    """Far slower ones than expected count for ten seconds, although few calls have ended since."""
    queue = queue_of(TARGETED)
    for n in range(24):
        queue.model.observe(8, 0.016 * (10 if n % 4 == 0 else 1.0), 1.0)
    queue.model.observe_overhead(0.0, 1.0)
    fill(queue, 10, 2.0)
    taken(queue, 2.01)

    assert queue.model.slowness == pytest.approx(10, rel=0.01)
    assert queue.late_by(Request("new", 10.9), 10.9) > 0
    assert 0 == queue.late_by(Request("new", 11.0), 11.0)
    assert queue.model.slowness == pytest.approx(1, rel=0.01)


def test_more_is_refused_where_predictions_err():
    """Accepted requests have to be early by a margin, which grows with those that were late."""
    queue = queue_of(TARGETED)
    queue.model._slowness, queue.model._judged_as_of = 1.0, None
    fill(queue, 64, 0.0)
    taken(queue, 0.0)
    assert not queue.late_by(Request("new", 0.0), 0.0)
    for _ in range(100):
        queue.note_accepted(1.0)

    assert 0.05 == queue.margin
    assert queue.late_by(Request("new", 0.0), 0.0) > 0
    for _ in range(1000):
        queue.note_accepted(0.0)
    assert 0.0 == queue.margin


def test_each_ready_batch_is_for_another_process():
    """With two processes, the second batch that is ready leaves before the second one ends."""
    queue = queue_of(TARGETED)
    queue._processes = lambda: 2
    fill(queue, 20, 0.0)
    taken(queue, 1.0)
    fill(queue, 20, 1.01)
    taken(queue, 1.02)
    fill(queue, 12, 1.02)
    first = taken(queue, 1.028 + 1e-6, full_only=True)
    fill(queue, 12, 1.028)
    wait = queue.next(1.028 + 1e-6, full_only=True)

    assert (Reason.AHEAD, 12) == (first.reason, len(first))
    assert isinstance(wait, Wait)
    assert pytest.approx(0.02, rel=0.05) == wait.seconds


def test_batches_of_one_key_keep_the_target():
    """Where batches are formed by key, limits and what is ahead hold for all keys together."""
    policy = BatchPolicy(64, 0.01, target_latency=0.1)
    queue: TargetedQueue[str] = TargetedQueue(KeyedBatcher(policy))
    teach(queue.model, 0.016, 0.002)
    for n in range(100):
        queue.add(Request(str(n), 0.0, key=n % 2))
    first = taken(queue, 0.0)
    second = taken(queue, 1.0, full_only=True)

    assert (plan_of(first).limit.work, "target") == plan_of(first).facts[2:4]
    assert 38 <= len(first) <= 42
    assert {0, 1} == {first.key, second.key}
    assert queue.late_by(Request("new", 1.0, key=3), 1.0) > 0


def test_each_key_that_waits_is_a_batch_of_its_own():
    """One request of each of twenty keys takes twenty calls, of which more processes share."""
    policy = BatchPolicy(64, 10.0, target_latency=0.1)
    queue: TargetedQueue[str] = TargetedQueue(KeyedBatcher(policy))
    teach(queue.model)
    queue.model._slowness, queue.model._judged_as_of = 1.0, None
    for n in range(20):
        queue.add(Request(str(n), 0.0, key=n))
    queue.next(0.0)
    late = queue.late_by(Request("new", 0.0, key="new"), 0.0)
    queue._processes = lambda: 4

    assert pytest.approx(20 * 0.008 + 0.029 - 0.1, abs=0.01) == late
    assert 0 == queue.late_by(Request("new", 0.0, key="new"), 0.0)
    assert 0 == queue.late_by(Request("urgent", 0.0, -1, key="new"), 0.0)


LOADS = st.floats(min_value=0.2, max_value=0.75)


@pytest.mark.no_cover
@settings(max_examples=5 if "THOROUGH" in os.environ else 2, deadline=None)
@given(
    load=LOADS,
    ratio=st.sampled_from([0.5, 2.0]),
    target=st.sampled_from([0.1, 0.2]),
    seed=st.integers(min_value=0, max_value=1000),
)
def test_the_target_is_kept_though_the_speed_changes(
    load: float, ratio: float, target: float, seed: int
):
    """Two seconds after a change nearly all are in time; an outlier makes a few batches late."""
    slow = max(ratio, 1.0)
    rate = load * (0.7 if target > 0.1 else 0.5) / (0.001 * slow)
    model = VirtualModel(outliers=0.001, slower=lambda now: ratio if now >= 10 else 1.0)
    policy = BatchPolicy(64, 0.01, target_latency=target)
    worker = VirtualWorker(policy, model, seed=seed).run(poisson(rate, 0, 30, seed))

    assert worker.within(target, 2, 9) >= 0.9
    assert worker.within(target, 12) >= 0.9


@settings(max_examples=20, deadline=None)
@given(
    bursts=st.lists(st.integers(min_value=1, max_value=300), min_size=5, max_size=30),
    gap=st.sampled_from([0.05, 0.3, 1.0]),
    shed=st.booleans(),
)
def test_no_request_is_lost_in_bursts(bursts: list[int], gap: float, shed: bool):  # noqa: FBT001
    """Each is answered or refused, whatever the load; without shed none is refused."""
    arrivals = [n * gap for n, burst in enumerate(bursts) for _ in range(burst)]
    policy = BatchPolicy(64, 0.01, target_latency=0.1, shed=shed)
    worker = VirtualWorker(policy, VirtualModel()).run(arrivals)

    assert len(arrivals) == len(worker.answered) + len(worker.refused)
    assert shed or not worker.refused
    assert all(rows <= 64 for _, rows in worker.batches)


@pytest.mark.no_cover
@pytest.mark.parametrize("times", [1.5, 3.0])
def test_under_overload_those_that_are_not_refused_are_in_time(times: float):
    """The answers in time are nearly as many as without overload, where requests are refused."""
    policy = BatchPolicy(64, 0.01, target_latency=0.1, shed=True)
    worker = VirtualWorker(policy, VirtualModel()).run(poisson(760 * times, 0, 20))
    in_time = [end - sent <= 0.1 for sent, end in worker.answered]

    assert sum(in_time) / len(in_time) > 0.9
    assert sum(in_time) / 20 > 0.95 * 760


def test_under_overload_without_refusals_batches_are_full():
    """The backlog is worked off at the highest rate."""
    policy = BatchPolicy(64, 0.01, target_latency=0.05)
    worker = VirtualWorker(policy, VirtualModel()).run(poisson(2000, 0, 10))
    late = [rows for began, rows in worker.batches if 2 < began < 20]

    assert {64} == set(late)


def test_padding_counts_in_what_goes_before():
    """Batches cost more than their requests without padding, as much as those of late."""
    policy = BatchPolicy(
        1024, 0.01, max_batch_cost=64, padded=True, sort_window=0, target_latency=0.1
    )
    queue = queue_of(policy)
    queue.model._slowness, queue.model._judged_as_of = 1.0, None
    late = []
    for _ in range(2):
        for n in range(20):
            queue.add(Request(str(n), 0.0, cost=16.0 if n % 4 == 0 else 1.0))
        late.append(queue.late_by(Request("new", 0.0, cost=1.0), 0.0))
        while queue._batcher.rows:
            queue.ended(plan_of(taken(queue, 5.0)), 5.0)

    assert late[0] < late[1]
    queue.add(Request("free", 6.0, cost=0.0))
    assert 0 == plan_of(taken(queue, 7.0)).work
