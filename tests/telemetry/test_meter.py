"""Counts of batches: histograms, meter, device idle time, reports."""

from __future__ import annotations

import json
import math
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.telemetry.histogram import Histogram
from celery_batch.telemetry.meter import DeviceIdle, Meter
from celery_batch.telemetry.report import BatchReport, End, RequestEnd, Reuse, Work

SECONDS = st.floats(min_value=0, max_value=20, allow_nan=False)


def report(**facts) -> BatchReport:
    """Return a report of a batch of two."""
    usual = {
        "task": "double",
        "requests": 2,
        "rows": 2,
        "most": 8,
        "reason": "idle",
        "end": End.ANSWERED,
        "outcomes": {RequestEnd.SUCCEEDED: 2},
        "waits": [0.01, 0.02],
        "work": Work(1, 10.0, 10.5, 0.5),
        "pid": 7,
    }
    return BatchReport(**{**usual, **facts})


@given(st.lists(SECONDS))
def test_each_number_is_in_one_bucket(numbers: list[float]):
    """Numbers up to a bound are counted there, and the sum is theirs, one by one or together."""
    bounds = (0.5, 1.0, 5.0, 10.0)
    one_by_one, together = Histogram(bounds), Histogram(bounds)
    for number in numbers:
        one_by_one.add(number)
    together.add_all(numbers)
    expected = [0] * 5
    for number in numbers:
        expected[bisect_left(bounds, number)] += 1

    assert expected == one_by_one.counts == together.counts
    assert sum(numbers) == pytest.approx(together.sum)
    assert len(numbers) == together.count


@given(st.lists(SECONDS, min_size=2), st.integers(min_value=1, max_value=99))
def test_quantile_is_in_the_bucket_of_the_true_one(numbers: list[float], percent: int):
    """An estimate errs by the width of its bucket at most."""
    bounds = tuple(float(n) for n in range(1, 21))
    histogram = Histogram(bounds)
    histogram.add_all(numbers)
    ranked = sorted(numbers)
    lower, upper = (
        ranked[min(max(int(len(ranked) * percent / 100 + d), 0), len(ranked) - 1)] for d in (-1, 1)
    )
    estimate = histogram.quantile(percent / 100)

    assert estimate is not None
    assert lower - 1.0 <= estimate <= upper + 1.0


def test_quantiles_of_nothing_and_of_what_is_beyond_all_bounds():
    """Without numbers there is no quantile; beyond all bounds it is the last bound."""
    histogram = Histogram((1.0, 2.0))

    assert (None, None) == (histogram.quantile(0.5), histogram.mean)

    histogram.add(50.0)

    assert (2.0, 50.0) == (histogram.quantile(0.5), histogram.mean)


def test_batches_of_a_task_are_added_up():
    """The summary has sizes, waits, model times, outcomes and failures."""
    meter = Meter(0.0)
    meter.add(report())
    meter.add(
        report(
            requests=4,
            rows=4,
            outcomes={RequestEnd.SUCCEEDED: 3, RequestEnd.FAILED: 1},
            waits=[0.01] * 4,
            work=Work(5, 11.0, 12.0, 1.0, isolated=1, out_of_memory=2, split=3),
        )
    )
    meter.add(report(end=End.LOST, outcomes={RequestEnd.AGAIN: 2}, waits=[], work=Work(), poison=1))
    for _ in range(3):
        meter.add_outcome("double", RequestEnd.EXPIRED)
    summary = meter.tally("double").summary()

    assert 3 == summary["ended"]
    assert (2 / 8 + 4 / 8 + 2 / 8) / 3 == pytest.approx(summary["fill"], abs=1e-6)
    assert {"succeeded": 5, "failed": 1, "again": 2, "expired": 3} == summary["outcomes"]
    trouble = {"lost": 1, "isolated": 1, "split": 3, "out_of_memory": 2, "poison": 1}
    assert trouble == summary["trouble"]
    assert 1.5 == summary["model"]["seconds"]
    assert 0.07 / 6 == pytest.approx(summary["wait"]["mean"], abs=1e-6)
    assert {"0.0075": 0, "0.01": 5, "0.015": 0, "0.02": 1} == summary["wait"]["buckets"]
    assert summary == json.loads(json.dumps(summary))


@pytest.mark.parametrize(("rows", "fill"), [(8, 1.0), (4, 0.5), (20, 20 / 24), (0, 0.0)])
def test_fill_is_the_share_of_the_room_in_its_calls(rows: int, fill: float):
    """A chunk that takes several calls fills the last of them in part."""
    assert fill == report(rows=rows).fill


@pytest.mark.parametrize(
    ("rows", "cost", "fill"), [(4, 75.0, 0.75), (6, 60.0, 0.75), (1, 900.0, 1)]
)
def test_fill_counts_cost_where_that_is_limited(rows: int, cost: float, fill: float):
    """Whatever of the batch's room was used up first; no item takes more than all of it."""
    work = Work(1, 0.0, 1.0, 1.0, padded_cost=cost)

    assert fill == report(rows=rows, work=work, most_cost=100.0).fill


def test_report_in_words_and_as_data():
    """One line describes a batch, and has more if something failed."""
    fine = report()
    bad = report(
        end=End.TIME_LIMIT, outcomes={RequestEnd.AGAIN: 2}, waits=[], work=Work(), taken=(1, 3.5)
    )

    assert "double: batch of 2 (idle), waited 0.020 s, model 0.500 s" == str(fine)
    assert "double: batch of 2 (idle), 2.500 s in its process, time_limit, 2 again" == str(bad)
    assert fine.facts() == json.loads(json.dumps(fine.facts()))
    assert ("double", 2, "idle", 0.02, 0.5) == tuple(
        fine.facts()[name] for name in ("task", "size", "reason", "wait", "model_seconds")
    )


@pytest.mark.parametrize(
    ("calls", "most", "text"),
    [(1, 2048.0, "1,980 of 2,048"), (2, 1000.0, "1,980 of 2,000"), (1, math.inf, "1,980")],
)
def test_report_names_the_cost(calls: int, most: float, text: str):
    """Whoever limits the cost sees how much of it the model calls used."""
    costly = report(work=Work(calls, 0.0, 0.5, 0.5, padded_cost=1980.0), most_cost=most)

    assert f"batch of 2 (idle), cost {text}, waited 0.020 s" in str(costly)
    assert 1980.0 == costly.facts()["cost"]


def test_report_names_what_the_cache_had():
    """Where that was all, no model ran."""
    some = report(work=Work(1, 0.0, 0.5, 0.5, reuse=Reuse(hits=1, misses=1)))
    each = report(waits=[], work=Work(reuse=Reuse(hits=2)), taken=(1, 1.25))

    assert "batch of 2 (idle), 1 from the cache, waited 0.020 s, model 0.500 s" in str(some)
    assert "batch of 2 (idle), 2 from the cache, 0.250 s in its process" in str(each)


def test_report_of_chunks_counts_rows_and_requests():
    """Where requests have many rows, the line names the unit of each number."""
    one = report(requests=1, rows=32, outcomes={RequestEnd.FAILED: 1}, waits=[0.01])
    some = report(rows=9, outcomes={RequestEnd.SUCCEEDED: 1, RequestEnd.RETRIED: 2})
    single = report(outcomes={RequestEnd.SUCCEEDED: 1, RequestEnd.FAILED: 1})

    assert "double: batch of 32 rows in 1 request (idle)," in str(one)
    assert str(one).endswith("model 0.500 s, 1 request failed")
    assert "batch of 9 rows in 2 requests (idle)" in str(some)
    assert str(some).endswith(", 2 requests retried")
    assert "double: batch of 2 (idle), waited 0.020 s, model 0.500 s, 1 failed" == str(single)


def test_idle_is_the_time_between_model_calls():
    """A process is idle from its start to its first batch, between batches, and after the last."""
    idle = DeviceIdle(100.0)
    idle.ran(7, 101.0, 103.0)
    idle.ran(7, 103.5, 104.0)

    assert 1.5 == idle.seconds(104.0, {}, 1)
    assert 3.5 == idle.seconds(106.0, {}, 1)


def test_idle_time_never_becomes_less():
    """When a batch is reported late, the number stands still until it is right again."""
    idle = DeviceIdle(100.0)
    idle.ran(7, 100.0, 101.0)

    assert 4.0 == idle.seconds(105.0, {}, 1)

    idle.ran(7, 102.0, 106.0)

    assert 4.0 == idle.seconds(106.0, {}, 1)
    assert 5.0 == idle.seconds(110.0, {}, 1)
    assert 5.0 == idle.seconds(200.0, {7: 110.0}, 1)


def test_device_is_idle_while_another_process_takes_a_dead_ones_place():
    """The device of a dead process is idle until the next process has a batch."""
    idle = DeviceIdle(100.0)
    idle.ran(7, 100.0, 101.0)
    idle.ran(7, 110.0, 111.0)

    assert 9.0 + 4.0 == idle.seconds(115.0, {}, 1)
    assert 9.0 + 39.0 == idle.seconds(151.0, {8: 150.0}, 1)

    idle.ran(8, 150.0, 152.0)

    assert 9.0 + 39.0 + 1.0 == idle.seconds(153.0, {}, 1)


def test_overlapping_calls_of_a_process_count_once():
    """On the threads pool the time of a short call within a long one counts once."""
    idle = DeviceIdle(0.0)
    idle.ran(7, 2.0, 3.0)
    idle.ran(7, 1.0, 5.0)

    assert 2.0 + 5.0 == idle.seconds(10.0, {}, 1)


@given(st.lists(st.tuples(st.integers(1, 3), SECONDS, SECONDS), max_size=30))
def test_idle_time_is_never_more_than_there_was(spans: list[tuple[int, float, float]]):
    """Idle time is never more than the time of all processes."""
    idle, now = DeviceIdle(0.0), 0.0
    for pid, gap, length in spans:
        began = now + gap
        now = began + length
        idle.ran(pid, began, now)

    assert 0.0 <= idle.seconds(now, {}, 3) <= 3 * now + 1e-6
