"""Batches that are limited by cost: what fits, what is chosen, and how long anything may wait."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.cost import CallCost, CostLimits, Load
from celery_batch.batching.cost_queue import CostQueue
from celery_batch.batching.length_queue import LengthQueue
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.priority_queue import PriorityQueue

limits = st.builds(
    CostLimits, st.integers(1, 8), st.floats(1, 60).map(round).map(float), st.booleans()
)
costs = st.integers(0, 40).map(float)
#: What a call costs; mostly it is not known.
call_costs = st.sampled_from([inf, inf, 0.0, 3.0, 30.0, 1000.0]).map(CallCost)
#: In turn: a request with cost and rows that comes, or None for a batch that leaves.
events = st.lists(st.none() | st.tuples(costs, st.sampled_from([1, 1, 1, 1, 2, 5])), max_size=120)


def padding_policy(rows: int = 4, cost: float = 80.0) -> BatchPolicy:
    """Return a policy that pads, with a window of two batches and a share of a quarter."""
    return BatchPolicy(rows, 1.0, None, 0.25, cost, padded=True, sort_window=2)


def cost_of(batch: list[Request[int]], limit: CostLimits) -> float:
    """Return what a batch costs."""
    if limit.is_padded:
        return max(each.cost for each in batch) * sum(each.rows for each in batch)
    return sum(each.cost for each in batch)


def fits(batch: list[Request[int]], limit: CostLimits) -> bool:
    """Return whether a batch is within the limits, or only one request."""
    is_small = sum(each.rows for each in batch) <= limit.rows
    return len(batch) == 1 or (is_small and cost_of(batch, limit) <= limit.cost)


def run(queue: LengthQueue[int], steps: list[tuple[float, int] | None]) -> list[list[Request[int]]]:
    """Let requests come and batches leave, to the last; return the batches."""
    batches = []
    for n, step in enumerate(steps):
        if step is not None:
            cost, rows = step
            queue.append(Request(n, float(n), rows=rows, cost=cost))
        elif queue:
            batches.append(queue.take())
    while queue:
        batches.append(queue.take())
    return batches


@given(events, limits, st.integers(0, 4), call_costs)
def test_every_request_leaves_once_and_within_the_limits(steps, limit, window, call_cost):
    """Nothing is lost or taken twice; only a request that is too large by itself exceeds."""
    queue: LengthQueue[int] = LengthQueue(limit, window, call_cost)
    batches = run(queue, steps)

    came = [n for n, step in enumerate(steps) if step is not None]
    assert came == sorted(request.item for batch in batches for request in batch)
    assert all(fits(batch, limit) for batch in batches)
    assert (0, 0, 0.0) == (len(queue), queue.rows, queue.cost)


@given(events, st.lists(st.tuples(limits, st.integers(0, 3)), min_size=1, max_size=9), call_costs)
def test_limits_may_change_at_any_time(steps, changes, call_cost):
    """Nothing is lost, the oldest request is in each batch, and each keeps to the new limits."""
    changes = [(replace(limit, is_padded=changes[0][0].is_padded), n) for limit, n in changes]
    queue: LengthQueue[int] = LengthQueue(*changes[0], call_cost)
    came, left, batches = list[int](), list[int](), 0
    for n, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            queue.append(Request(n, float(n), rows=step[1], cost=step[0]))
            came.append(n)
            continue
        limit, window = changes[batches % len(changes)]
        queue.limit(limit, window)
        batches += 1
        if queue:
            waiting, oldest = list(queue), queue.oldest
            taken = queue.take()
            assert oldest in taken
            assert fits(taken, limit)
            if not queue.may_divide:
                assert (taken == waiting) == fits(waiting, limit)
            left += [request.item for request in taken]

    assert came == sorted(left)
    assert (0, 0, 0.0) == (len(queue), queue.rows, queue.cost)


@given(events, limits, st.integers(0, 4))
def test_a_batch_has_the_oldest_request_and_all_if_all_fit(steps, limit, window):
    """The one that has waited longest is in each batch, and no batch leaves room unused."""
    queue: LengthQueue[int] = LengthQueue(limit, window)
    for n, step in enumerate([*steps, None, None, None]):
        if step is not None:
            queue.append(Request(n, float(n), rows=step[1], cost=step[0]))
        elif queue:
            waiting = list(queue)
            was_full = queue.batch.is_full
            taken = queue.take()
            assert waiting[0] in taken
            assert taken == sorted(taken, key=lambda request: request.arrived)
            assert (taken == waiting) == fits(waiting, limit)
            assert was_full or taken == waiting


@pytest.mark.no_cover
@given(
    st.lists(st.tuples(costs, st.sampled_from([1, 1, 1, 2])), max_size=20),
    st.lists(st.lists(st.just("match") | costs, max_size=4), max_size=30),
    limits,
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 5.0, 40.0])), min_size=1),
    call_costs,
)
def test_no_request_waits_much_longer_than_first_come_first_served(
    first, later, limit, window, growth, call_cost
):
    """
    At most the window's number of batches, even if newcomers match the oldest each time.

    That also holds while the limits grow.
    """
    limit = CostLimits(limit.rows, limit.cost, is_padded=True)
    queue: LengthQueue[int] = LengthQueue(limit, window, call_cost)
    reference: deque[Request[int]] = deque()
    batches, allowed, left, count = 0, {}, {}, 0
    for newcomers in [first, *later, *[[]] * 200]:
        for each in newcomers:
            cost, rows = each if isinstance(each, tuple) else (each, 1)
            if cost == "match":
                cost = queue.oldest.cost if queue else 1.0
            request = Request(count, float(count), rows=rows, cost=cost)
            count += 1
            queue.append(request)
            reference.append(request)
        if not queue:
            continue
        if batches < len(growth):
            rows, cost = growth[batches]
            limit = CostLimits(limit.rows + rows, limit.cost + cost, is_padded=True)
            queue.limit(limit, window)
        batches += 1
        load = Load(limit)
        while reference and load.offer(reference[0]):
            allowed[reference.popleft().item] = batches + window
        left |= dict.fromkeys((request.item for request in queue.take()), batches)

    assert not queue
    assert all(left[item] <= allowed.get(item, batches) for item in left)


@given(
    st.lists(st.integers(1, 40).map(float), min_size=1, max_size=12),
    limits,
    st.sampled_from([0.5, 3.0, 30.0, 1000.0]),
)
def test_most_is_done_in_the_time_of_a_batch(waiting, limit, call_cost):
    """Of a backlog no neighbours of the oldest request do more for the cost of their call."""
    limit = replace(limit, is_padded=True)
    queue: LengthQueue[int] = LengthQueue(limit, 999, CallCost(call_cost))
    for n, cost in enumerate(waiting):
        queue.append(Request(n, float(n), cost=cost))
    by_cost = sorted(queue, key=lambda request: request.cost)
    at, count = by_cost.index(queue.oldest), len(by_cost)
    call_cost = max(call_cost, 0.05 * limit.cost)

    def gain(batch: list[Request[int]]) -> float:
        return sum(each.cost for each in batch) / (call_cost + cost_of(batch, limit))

    slices = [by_cost[start:end] for start in range(at + 1) for end in range(at + 1, count + 1)]
    batches = [batch for batch in slices if fits(batch, limit)]
    is_one_batch = queue.is_one_batch
    taken = queue.take()

    assert fits(taken, limit)
    assert is_one_batch or gain(taken) >= 0.999 * max(map(gain, batches))


@given(st.lists(costs, min_size=1, max_size=9), st.sampled_from([0.5, 30.0, 1000.0]))
def test_what_fits_into_one_batch_takes_no_longer_in_several(waiting, call_cost):
    """All calls together cost at most what one would."""
    limit = CostLimits(64, 10_000.0, is_padded=True)
    queue: LengthQueue[int] = LengthQueue(limit, 8, CallCost(call_cost))
    for n, cost in enumerate(waiting):
        queue.append(Request(n, float(n), cost=cost))
    whole = call_cost + cost_of(list(queue), limit)
    batches = []
    while queue:
        batches.append(queue.take())

    least = 0.005 * limit.cost
    assert sum(cost_of(each, limit) + max(call_cost, least) for each in batches) <= (
        max(whole, whole - call_cost + least) * 1.001
    )


@pytest.mark.parametrize(
    ("call_cost", "first"),
    [(inf, [0, 1, 2, 3]), (1000.0, [0, 1, 2, 3]), (10.0, [0, 2])],
)
def test_short_ones_wait_for_the_next_call_where_that_is_cheaper(call_cost, first):
    """Beside two long ones they would be padded by more than another call costs."""
    queue: CostQueue[int] = CostQueue(CostLimits(8, 800.0, is_padded=True), 8, CallCost(call_cost))
    for n, cost in enumerate([50.0, 4.0, 50.0, 4.0]):
        queue.append(Request(n, float(n), cost=cost))

    assert first == [request.item for request in queue.take(8)]
    assert [n for n in range(4) if n not in first] == (
        [request.item for request in queue.take(8)] if queue else []
    )


def test_what_is_due_takes_along_only_what_is_worth_it():
    """A long one that may wait no longer leaves without short ones, which have a call of theirs."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(4, 400.0, is_padded=True), 1, CallCost(1.0))
    for n, cost in enumerate([4.0, 90.0]):
        queue.append(Request(n, float(n), cost=cost))
    assert [0] == [each.item for each in queue.take()]
    for n, cost in enumerate([4.0, 90.0], 2):
        queue.append(Request(n, float(n), cost=cost))

    assert [[1, 3], [2]] == [[each.item for each in queue.take()] for _ in range(2)]


def test_what_does_not_fit_beside_one_that_is_due_waits():
    """A chunk of four rows has no room beside a row that may wait no longer."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(4, 400.0, is_padded=True), 1, CallCost(1.0))
    for n, (cost, rows) in enumerate([(4.0, 3), (90.0, 1)]):
        queue.append(Request(n, float(n), rows=rows, cost=cost))
    assert [0] == [each.item for each in queue.take()]
    for n, rows in enumerate([4, 4], 2):
        queue.append(Request(n, float(n), rows=rows, cost=90.0))

    assert [[1], [2], [3]] == [[each.item for each in queue.take()] for _ in range(3)]


def test_rows_that_are_worth_their_padding_leave_together():
    """A call costs more than the padding of a shorter and of the oldest row."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(8, 800.0, is_padded=True), 8, CallCost(100.0))
    for n, cost in enumerate([50.0, 40.0, 60.0]):
        queue.append(Request(n, float(n), cost=cost))

    assert [0, 1, 2] == [each.item for each in queue.take()]


@pytest.mark.parametrize(
    ("costs", "call_cost", "expected"),
    [
        ([50.0, 40.0, 60.0, 60.0], 100.0, [[0, 2, 3], [1]]),
        ([50.0, 50.0, 90.0, 90.0], 40.0, [[0, 1], [2, 3]]),
    ],
    ids=["longer ones are worth it", "longer ones are not"],
)
def test_of_a_backlog_those_leave_with_which_most_is_done(costs, call_cost, expected):
    """Beside the oldest, of more than a batch: a call costs as much as some padding."""
    limits = CostLimits(3, 800.0, is_padded=True)
    queue: LengthQueue[int] = LengthQueue(limits, 8, CallCost(call_cost))
    for n, cost in enumerate(costs):
        queue.append(Request(n, float(n), cost=cost))

    assert expected == [[each.item for each in queue.take()] for _ in range(2)]


def test_longer_ones_that_do_not_fit_beside_the_oldest():
    """The oldest leaves without them, though it would be worth its padding."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(8, 80.0, is_padded=True), 8, CallCost(30.0))
    for n, cost in enumerate([50.0, 60.0, 60.0]):
        queue.append(Request(n, float(n), cost=cost))

    assert [[0], [1], [2]] == [[each.item for each in queue.take()] for _ in range(3)]


def test_what_is_left_behind_waits_no_longer():
    """A slot that is free takes it at once, and not after another linger time."""
    call_cost = CallCost(10.0)
    batcher: Batcher[int] = Batcher(
        BatchPolicy(8, 1.0, 1.0, max_batch_cost=800.0, padded=True), call_cost
    )
    for n, cost in enumerate([4.0] * 5 + [50.0]):
        batcher.add(Request(n, 0.0, cost=cost))
    first = batcher.next(1.0)
    batcher.batch_ended(1.3, 5, 0)
    due_at, second = batcher.due_at, batcher.next(1.3)

    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert due_at <= 1.3
    assert ([0, 1, 2, 3, 4], [5], Reason.IDLE) == (first.items, second.items, second.reason)
    batcher.add(Request(6, 2.0, cost=4.0))
    assert isinstance(batcher.next(2.0), Wait)


def test_less_urgent_requests_take_no_place_of_urgent_ones_that_were_left():
    """The long urgent request leaves next, and no long one before it."""
    queue: CostQueue[str] = CostQueue(CostLimits(8, 8000.0, is_padded=True), 8, CallCost(100.0))
    for n in range(5):
        queue.append(Request(f"short {n}", float(n), cost=10.0))
    queue.append(Request("urgent", 5.0, cost=500.0))
    queue.append(Request("other", 6.0, urgency=1, cost=500.0))

    assert [f"short {n}" for n in range(5)] == [each.item for each in queue.take(8)]
    assert ["urgent", "other"] == [each.item for each in queue.take(8)]


@pytest.mark.parametrize("sizes", [(), (4, 8)])
def test_one_batch_is_cut_where_two_calls_cost_less(sizes):
    """Also where the longest row does most of the work, and calls have few sizes."""
    limits = CostLimits(8, 8000.0, is_padded=True, sizes=sizes)
    queue: LengthQueue[int] = LengthQueue(limits, 8, CallCost(100.0))
    for n, cost in enumerate([10.0, 10.0, 10.0, 500.0]):
        queue.append(Request(n, float(n), cost=cost))

    taken = [each.item for each in queue.take()]
    assert taken == ([0, 1, 2] if not sizes else [0, 1, 2, 3])


def test_newcomers_that_match_cannot_hold_up_one_that_does_not():
    """Three like the oldest come for each batch of four, which then has room for no other."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(4, 1e6, is_padded=True), 2)
    for n in range(5):
        queue.append(Request(n, float(n), cost=(n + 1) * 100.0))
    left = {}
    for batch in range(1, 6):
        for _ in range(3):
            queue.append(Request(-1, 99.0, cost=queue.oldest.cost))
        left |= {request.item: batch for request in queue.take()}

    # First come, first served takes the fifth with its second batch; two batches later it is due.
    assert [1, 2, 3, 3, 4] == [left[n] for n in range(5)]


def test_a_policy_that_changes_keeps_what_is_due():
    """A live change, as a latency target makes it often, does not begin the count again."""
    queue: Batcher[int] = Batcher(padding_policy(cost=1e6))
    for n in range(5):
        queue.add(Request(n, float(n), cost=(n + 1) * 100.0))
    left = {}
    for batch in range(1, 6):
        for _ in range(3):
            queue.add(Request(-1, 99.0, cost=500.0 if batch == 5 else batch * 100.0))
        queue.policy = padding_policy(cost=1e6 + batch)
        decision = queue.next(99.0)
        assert isinstance(decision, Batch)
        left |= {request.item: batch for request in decision.requests}

    assert [1, 2, 3, 3, 4] == [left[n] for n in range(5)]


def test_what_is_due_and_fits_no_more_leaves_with_the_next_batches():
    """Smaller limits make more batches, in the order in which their requests are due."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(6, 1e6, is_padded=True), 2)
    for n, cost in enumerate([1, 100, 300, 500, 700, 900, 1, 1, 1, 1, 1, 100]):
        queue.append(Request(n, float(n), cost=float(cost)))
    left = [[request.item for request in queue.take()]]
    queue.limit(CostLimits(2, 1e6, is_padded=True), 2)
    left += [[request.item for request in queue.take()] for _ in range(2)]
    queue.append(Request(12, 12.0, cost=700.0))  # as long as the oldest
    left += [[request.item for request in queue.take()] for _ in range(2)]

    assert [[0, 6, 7, 8, 9, 10], [1, 11], [2, 3], [4, 5], [12]] == left


def test_a_shorter_window_is_due_sooner():
    """Also for the requests that were to leave later with the longer one."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(2, 1e6, is_padded=True), 9)
    for n, cost in enumerate([1, 900, 2, 500, 3, 4, 5, 6, 7, 8]):
        queue.append(Request(n, float(n), cost=float(cost)))
    assert [0, 2] == [request.item for request in queue.take()]
    queue.limit(CostLimits(2, 1e6, is_padded=True), 1)

    assert 1 in [request.item for request in queue.take()]


def test_a_window_may_begin_and_end_while_requests_wait():
    """Without one they leave in order of arrival, whatever was due; with one by length."""
    few = CostLimits(2, 1e6, is_padded=True)
    queue: LengthQueue[int] = LengthQueue(few, 3)
    for n, cost in enumerate([1, 900, 1, 900, 5, 70, 6, 71]):
        queue.append(Request(n, float(n), cost=float(cost)))
    assert [0, 2] == [request.item for request in queue.take()]
    queue.limit(few, 0)
    assert [1, 3] == [request.item for request in queue.take()]
    queue.limit(few, 3)
    assert [4, 6] == [request.item for request in queue.take()]


def test_least_is_padded_around_the_oldest():
    """Of the batches that hold the oldest request, the one of most similar lengths leaves."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(3, 1000.0, is_padded=True), 8)
    for n, cost in enumerate([50, 10, 55, 90, 49, 11, 51, 20]):
        queue.append(Request(cost, float(n), cost=cost))

    assert [50, 49, 51] == [request.item for request in queue.take()]
    assert [10, 11, 20] == [request.item for request in queue.take()]
    assert [55, 90] == [request.item for request in queue.take()]


def test_short_rows_make_large_batches():
    """The limit is cost, so that many short rows, or few long ones, are one batch."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(1024, 100.0, is_padded=True), 8)
    for n, cost in enumerate([10] * 12 + [50] * 3 + [200]):
        queue.append(Request(cost, float(n), cost=cost))

    assert [[10] * 10, [10, 10], [50, 50], [50], [200]] == [
        [request.item for request in queue.take()] for _ in range(5)
    ]


def test_a_sum_is_first_come_first_served():
    """Where nothing is padded there is nothing to gain by another order."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(8, 10.0, is_padded=False), 8)
    for n, cost in enumerate([4, 4, 4, 1, 1, 20, 3]):
        queue.append(Request(n, float(n), cost=cost))

    assert [[0, 1], [2, 3, 4], [5], [6]] == [
        [request.item for request in queue.take()] for _ in range(4)
    ]


def names(queue: CostQueue[str], share: float = 0.0) -> str:
    """Return the names of the next batch."""
    return "".join(request.item for request in queue.take(8, share))


def filled(
    *groups: tuple[str, int, float], padded: bool = True, call_cost: float = inf
) -> CostQueue[str]:
    """Return a queue with letters of an urgency and a cost, limited to eight rows and cost 80."""
    queue: CostQueue[str] = CostQueue(CostLimits(8, 80.0, padded), 8, CallCost(call_cost))
    for letters, urgency, cost in groups:
        for letter in letters:
            queue.append(Request(letter, float(ord(letter)), urgency, cost=cost))
    return queue


def test_urgent_requests_go_first_with_what_fits_beside_them():
    """The room they leave is given to less urgent ones that make the batch no longer."""
    queue = filled(("abc", 0, 10.0), ("de", 1, 9.0), ("fgh", 1, 70.0), ("ij", 2, 5.0))

    assert "abcdeij" == names(queue)
    assert ("f", "g", "h") == (names(queue), names(queue), names(queue))


def test_requests_of_all_urgencies_leave_together_if_they_fit():
    """A batch that holds all that wait needs no other after it, however unlike they are."""
    queue = filled(("ab", 0, 1.0), ("c", 1, 20.0))

    assert "abc" == names(queue)
    assert 0 == len(queue)


def test_in_order_of_arrival_less_urgent_ones_fill_the_room_too():
    """Without padding the room is what the cost leaves."""
    queue = filled(("abc", 0, 20.0), ("d", 1, 15.0), ("ef", 1, 60.0), padded=False)

    assert "abcd" == names(queue)
    assert ("e", "f") == (names(queue), names(queue))


def test_overtaken_requests_get_their_share_in_whole_batches():
    """A share of a quarter is every fourth batch, however long urgent ones keep coming."""
    queue = filled(("z", 5, 80.0))
    left = []
    for n in range(8):
        for letter in "abcdefgh":
            queue.append(Request(letter, float(n), 0, cost=10.0))
        if n == 3:
            queue.append(Request("y", 200.0, 5, cost=80.0))
        left.append(names(queue, 0.25))

    assert [3, 7] == [n for n, batch in enumerate(left) if batch in ("z", "y")]


@pytest.mark.parametrize("call_cost", [inf, 3.0])
def test_short_overtaken_requests_do_not_starve_a_long_one(call_cost: float):
    """Those that fit beside urgent ones have the share's rows, and it still gets its batch."""
    queue = filled(("z", 5, 40.0), call_cost=call_cost)
    left = []
    for _ in range(8):
        for letter in "abcdef":
            queue.append(Request(letter, 200.0, 0, cost=10.0))
        for letter in "12":
            queue.append(Request(letter, 200.0, 5, cost=10.0))
        left.append(names(queue, 0.25))

    assert [n for n, batch in enumerate(left) if "z" in batch] == [3]


def test_a_policy_that_changes_keeps_what_overtaken_requests_have_earned():
    """Else a target that changes the limits with each batch would hold them up for good."""
    queue: Batcher[str] = Batcher(padding_policy(rows=8, cost=80.0))
    queue.add(Request("z", 0.0, 5, cost=80.0))
    left = []
    for n in range(4):
        for letter in "abcdefgh":
            queue.add(Request(letter, float(n), 0, cost=10.0))
        queue.policy = padding_policy(rows=8, cost=80.0 + n % 2)
        decision = queue.next(99.0)
        assert isinstance(decision, Batch)
        left.append([request.item for request in decision.requests])

    assert ["z"] == left[3]


def test_what_is_left_of_overtaken_requests_keeps_what_they_have_earned():
    """Requests that are overtaken no more say which part of a batch they had earned."""
    queue = filled(("abcdefgh", 0, 10.0), ("z", 5, 80.0))

    assert ("abcdefgh", 0.0) == (names(queue, 0.25), queue.earned_rows - 0.25 * 8)
    assert "z" == names(queue, 0.25)
    assert 0.0 == queue.earned_rows


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=30), st.integers(-1, 4))
def test_what_goes_before_is_counted_as_without_a_cost(waiting, urgency):
    """Urgency is what decides who is first, so that the counts are those of other queues."""
    plain: PriorityQueue[int] = PriorityQueue()
    queue: CostQueue[int] = CostQueue(CostLimits(8, 80.0, is_padded=True), 8)
    for n, (each, rows) in enumerate(waiting):
        for one in (plain, queue):
            one.append(Request(n, float(n), each, rows=rows, cost=1.0))

    assert plain.before(urgency) == queue.before(urgency)
    assert plain.rows_of(urgency) == queue.rows_of(urgency)
    assert (len(plain), plain.rows, plain.oldest, plain.urgency) == (
        len(queue),
        queue.rows,
        queue.oldest,
        queue.urgency,
    )
    assert plain.clear() == queue.clear()
    assert 0 == len(queue)


def batcher(**options: object) -> Batcher[float]:
    """Return a batcher whose batches are limited by a padded cost of 80."""
    return Batcher(BatchPolicy(8, 1.0, max_batch_cost=80, padded=True, **options))  # type: ignore[arg-type]


def decided(decision: object) -> tuple[list[float], str]:
    """Return the items of a batch, and why it left."""
    assert isinstance(decision, Batch)
    return decision.items, str(decision.reason)


def test_a_batch_is_full_when_its_cost_is():
    """It leaves at once when no further request would fit; before that it waits."""
    queue = batcher()
    queue.add(Request(30.0, 0.0, cost=30.0))
    assert isinstance(queue.next(0.0), Wait)
    queue.add(Request(35.0, 0.0, cost=35.0))

    assert ([30.0, 35.0], "full") == decided(queue.next(0.0))


def test_a_batch_is_full_when_urgencies_fill_it_together():
    """What each urgency leaves free, the others may use up."""
    queue = batcher()
    for urgency, cost in ((0, 30.0), (1, 30.0), (2, 25.0)):
        queue.add(Request(cost, 0.0, urgency, cost=cost))

    assert ([30.0, 30.0], "full") == decided(queue.next(0.0))


def test_a_batch_with_room_that_goes_before_others_is_urgent():
    """As where rows are counted: the less urgent requests do not fit beside it."""
    queue = batcher()
    for urgency, cost in ((0, 5.0), (1, 60.0), (1, 60.0)):
        queue.add(Request(cost, 0.0, urgency, cost=cost))

    assert ([5.0], str(Reason.URGENT)) == decided(queue.next(0.0))


def test_behind_a_running_batch_requests_wait_until_they_are_a_whole_batch():
    """A batch that cannot grow may still be mostly room, and more may come while another runs."""
    queue = batcher()
    for cost in (5.0, 60.0, 6.0):
        queue.add(Request(cost, 0.0, cost=cost))
    assert isinstance(queue.next(0.0, full_only=True), Wait)
    queue.add(Request(7.0, 0.0, cost=7.0))
    queue.add(Request(8.0, 0.0, cost=8.0))

    assert ([5.0, 6.0, 7.0, 8.0], "full") == decided(queue.next(0.0, full_only=True))
    assert ([60.0], "full") == decided(queue.next(0.0))


@given(
    st.lists(st.tuples(st.integers(0, 2), costs, st.booleans()), max_size=60),
    st.integers(0, 4),
    st.booleans(),
)
def test_some_requests_can_be_removed(waiting, window, padded):
    """The others leave as they would have, each once."""
    queue: CostQueue[int] = CostQueue(CostLimits(3, 40.0, padded), window)
    requests = [Request(n, float(n), each[0], cost=each[1]) for n, each in enumerate(waiting)]
    for request in requests:
        queue.append(request)
    removed = queue.remove(lambda request: waiting[request.item][2])
    left = []
    while len(queue):
        left += queue.take(3, 0.1)

    assert [n for n, each in enumerate(waiting) if each[2]] == sorted(each.item for each in removed)
    assert [n for n, each in enumerate(waiting) if not each[2]] == sorted(
        each.item for each in left
    )
    assert (0, 0.0, False) == (queue.rows, queue.work_before(9), queue.has_whole_batch(3))


def test_most_of_a_batch_does_not_stay_empty_for_an_urgent_request():
    """Longer requests go beside it if those that are no longer leave more than half of the room."""
    queue = filled(("a", 0, 5.0), ("bcdefghij", 1, 20.0))

    assert ("abcd", "efgh", "ij") == (names(queue), names(queue), names(queue))


@pytest.mark.parametrize(("call_cost", "first"), [(inf, "abcde"), (1000.0, "abcde"), (4.0, "ab")])
def test_urgent_rows_pad_less_urgent_ones_only_where_that_pays(call_cost, first):
    """Else these wait for a call of their own, as rows of the same urgency would."""
    queue = filled(("ab", 0, 16.0), ("cde", 1, 2.0), call_cost=call_cost)
    queue.append(Request("f", 200.0, 1, cost=70.0))

    assert first == names(queue)


@pytest.mark.parametrize(("call_cost", "first"), [(inf, "abc"), (100.0, "abc"), (4.0, "ab")])
def test_less_urgent_rows_pad_urgent_ones_only_where_that_pays(call_cost, first):
    """However much of the batch stays empty."""
    queue = filled(("ab", 0, 5.0), ("c", 1, 24.0), ("d", 1, 70.0), call_cost=call_cost)

    assert first == names(queue)


def test_requests_that_have_left_are_forgotten():
    """Although one that never leads a batch stands before them in the order of arrival."""
    queue: LengthQueue[int] = LengthQueue(CostLimits(2, 80.0, is_padded=True), 8)
    queue.append(Request(-1, 0.0, cost=70.0))
    for n in range(5000):
        queue.append(Request(n, float(n), cost=5.0))
        load = Load(CostLimits(2, 80.0, is_padded=True))
        load.offer(Request(0, 0.0, cost=5.0))
        queue.take_beside(load)

    assert 1 == len(queue)
    assert len(queue._arrivals) + len(queue._schedule.later) < 2100


@given(limits)
def test_limits_come_through_to_the_pool_process(limit):
    """They are pickled with each batch, as they are copied here."""
    assert limit == copy.copy(limit)


def test_a_policy_counts_work_in_its_own_unit():
    """Rows, or cost without padding; so many rows are fetched before any batch has run."""
    many = Request(0, 0.0, rows=3, cost=5.0)
    policies = [
        BatchPolicy(32),
        BatchPolicy(32, max_batch_cost=80),
        BatchPolicy(1024, max_batch_cost=80, padded=True),
    ]

    assert [(32, 3), (80, 5.0), (80, 15.0)] == [
        (policy.max_batch_work, policy.work_of(many.rows, many.cost)) for policy in policies
    ]
    assert [32, 32, 64] == [policy.usual_rows for policy in policies]
    assert [False, False, True] == [policy.sorts for policy in policies]


def test_a_policy_that_changes_keeps_all_requests():
    """Whether batches are counted in rows or in cost may change while requests wait."""
    queue = batcher()
    for n, cost in enumerate([70.0, 5.0, 60.0, 6.0]):
        queue.add(Request(cost, float(n), cost=cost))
    queue.policy = BatchPolicy(4, 1.0)
    queue.policy = BatchPolicy(4, 2.0)
    queue.policy = BatchPolicy(4, 1.0, max_batch_cost=80, padded=True, sort_window=4)

    assert ([70.0], "full") == decided(queue.next(0.0))
    assert ([5.0, 6.0], "full") == decided(queue.next(0.0))
    queue.policy = BatchPolicy(1, 2.0)
    assert ([60.0], "full") == decided(queue.next(0.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch_cost": 0}, "max_batch_cost: must be a number above 0, got 0"),
        ({"max_batch_cost": "8k"}, "max_batch_cost: must be a number above 0, got '8k'"),
        ({"max_batch_cost": float("inf")}, "max_batch_cost: must be a number above 0, got inf"),
        ({"max_batch_cost": 1, "padded": 1}, "padded: must be True or False, got 1"),
        ({"padded": True}, "padded: has no effect without max_batch_cost"),
        ({"sort_window": -1}, "sort_window: must be a whole number of batches from 0 up, got -1"),
        ({"sort_window": True}, "sort_window: must be a whole number of batches from 0 up"),
    ],
)
def test_wrong_limits_are_refused(options, words):
    """The error names the option, and what it may be."""
    with pytest.raises(ValueError, match=words):
        BatchPolicy(**options)
