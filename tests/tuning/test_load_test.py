"""The arithmetic of a load test."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.tuning.load_test import (
    TIMEOUT,
    Outcome,
    arrivals,
    load_result,
    mean_batch_size,
    parse_rates,
    quantile,
)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("50", (50,)),
        ("0.5", (0.5,)),
        ("50,100, 200", (50, 100, 200)),
        ("100:500:100", (100, 200, 300, 400, 500)),
        ("100:250:100", (100, 200)),
        ("0.1:0.3:0.1", (0.1, 0.2, 0.3)),
        ("5,10:30:10,5", (5, 10, 20, 30, 5)),
        ("7:7:1", (7,)),
    ],
)
def test_rates_are_numbers_and_ramps(text, rates):
    """A ramp includes its end where a step comes there."""
    assert parse_rates(text) == pytest.approx(rates)


@pytest.mark.parametrize(
    "text",
    [
        "", "fast", "0", "-1", "1,,2", "inf", "nan", "1:2", "1:2:0", "2:1:1", "1:2:-1",
        "1:2:3:4", "1:1000000:1", "0:10:5", "1:inf:1", "1:2:nan",
    ],
)  # fmt: skip
def test_what_are_no_rates_is_refused(text):
    """With nothing else than a ValueError."""
    with pytest.raises(ValueError, match=r"no r|could not convert"):
        parse_rates(text)


@given(st.floats(0.01, 2000), st.floats(0.01, 5), st.integers())
def test_requests_come_in_order_at_their_rate(rate, duration, seed):
    """There are exactly as many as the rate says, within the duration."""
    times = arrivals(rate, duration, seed)

    assert times == arrivals(rate, duration, seed)
    assert len(times) == max(1, round(rate * duration))
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= duration


def test_requests_are_independent():
    """As gaps between users' requests are: a share of 1/e is longer than the mean gap."""
    times = arrivals(1000, 20, 1)
    gaps = [after - before for before, after in pairwise(times)]

    assert sum(gap > 0.001 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


@pytest.mark.parametrize(
    ("share", "number"), [(0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1, 100)]
)
def test_a_quantile_is_one_of_the_numbers(share, number):
    """The least one that the share of all does not exceed."""
    assert quantile(range(1, 101), share) == number


@given(st.lists(st.integers(1, 64), min_size=1, max_size=50))
def test_each_batch_counts_once(batches):
    """Although each of its requests says its size."""
    said = [size for size in batches for _ in range(size)]

    assert mean_batch_size([*said, None, 0]) == pytest.approx(sum(batches) / len(batches))


def test_latency_counts_from_when_a_request_was_to_be_sent():
    """A request that was sent late has waited all the same."""
    late = [Outcome(due=0.1 * n, sent=1.0, ended=1.1) for n in range(10)]
    found = load_result(10, 1.0, 9.0, late)

    assert found.max == pytest.approx(1.1)
    assert found.p50 == pytest.approx(0.6)
    assert found.p90 == pytest.approx(1.0)


def test_answers_and_errors_are_counted_apart():
    """Timeouts count as the longest latencies; what was refused at once has none."""
    answers = [Outcome(n, n, n + 0.2, batch_size=2) for n in range(6)]
    timeouts = [Outcome(n, n, n + 5.0, TIMEOUT, "no answer") for n in range(3)]
    refused = [Outcome(9, 9, 9, "QueueFull", f"{n} wait") for n in range(1)]
    found = load_result(1.0, 10.0, 5.0, [*answers, *timeouts, *refused])

    assert (found.requests, found.answered) == (10, 6)
    assert found.errors == {TIMEOUT: 3, "QueueFull": 1}
    assert found.messages == {TIMEOUT: "no answer", "QueueFull": "0 wait"}
    assert (found.p50, found.p90, found.max) == pytest.approx((0.2, 5.0, 5.0))
    assert found.batch_size == 2


@pytest.mark.parametrize(
    ("ends", "achieved"),
    [
        ([0.5, 1.0, 1.5, 2.0], 0.4),  # all within the ten seconds, at the offered rate
        ([5.0, 10.0, 15.0, 20.0], 0.2),  # an overloaded service goes on after them
        ([], 0.0),
    ],
)
def test_the_achieved_rate_is_of_answers(ends, achieved):
    """From the beginning to the last answer, or to the end of the test."""
    answers = [Outcome(0, 0, end) for end in ends]
    lost = [Outcome(0, 30, 30, TIMEOUT)] * (4 - len(ends))
    found = load_result(0.4, 10.0, 30.0, [*answers, *lost])

    assert found.achieved_rate == pytest.approx(achieved)


def test_a_sender_that_is_too_slow_is_seen():
    """Requests reach the broker later and later."""
    outcomes = [Outcome(n / 100, n / 50, n / 50) for n in range(101)]

    assert load_result(100, 1.0, 9.0, outcomes).send_delay == pytest.approx(0.99)


def test_one_hung_request_does_not_make_a_slow_sender():
    """Nor do requests that never reached the broker."""
    sent = [Outcome(n / 100, n / 100 + 0.001, n / 100 + 0.1) for n in range(200)]
    hung = [Outcome(0.5, 8.0, 8.1), Outcome(0.5, None, 9.5, TIMEOUT)]

    assert load_result(100, 2.0, 9.0, [*sent, *hung]).send_delay == pytest.approx(0.001)
    assert load_result(100, 2.0, 9.0, hung[1:]).send_delay is None


def test_a_timeout_is_exactly_the_timeout():
    """The difference of two times may be less after rounding."""
    due, timeout = 6.01, 10.0
    found = load_result(1, 10.0, timeout, [Outcome(due, due, due + timeout, TIMEOUT)])

    assert (due + timeout) - due < timeout
    assert found.p50 == found.max == timeout


def test_a_timeout_error_of_the_task_is_no_timeout():
    """It came at once, and is no latency of an answer."""
    found = load_result(1, 1.0, 9.0, [Outcome(0, 0, 0.1, TimeoutError.__name__, "in the task")])

    assert found.errors == {"TimeoutError": 1}
    assert found.p50 is None


def test_nothing_but_refusals_has_no_latency():
    """And each kind of them is counted."""
    outcomes = [Outcome(0, 0, 0, kind) for kind in ("QueueFull", "ValueError", "QueueFull")]
    found = load_result(3, 1.0, 9.0, outcomes)

    assert found.p50 is found.p90 is found.p99 is found.max is found.batch_size is None
    assert Counter(found.errors) == {"QueueFull": 2, "ValueError": 1}
    assert (found.answered, found.achieved_rate) == (0, 0)
