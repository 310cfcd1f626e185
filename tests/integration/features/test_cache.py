"""Answers are kept in Redis, and used again."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch import BatchInfo, ChunkFailed
from tests.integration.features.test_chunks import close_both_slots
from tests.services.shared_setup import SOON, SharedSetup, batch_info, eventually

pytestmark = pytest.mark.alike_on_brokers

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.fixture(autouse=True)
def empty_cache(shared: SharedSetup) -> None:
    """Forget the answers of other tests, whose workers share this Redis."""
    with shared.memory() as client:
        if keys := client.keys("celery-batch-cache-*"):
            client.delete(*keys)


def await_cached(shared: SharedSetup, *items: int) -> None:
    """Return when so many more answers are kept: results are there a moment before."""
    with shared.memory() as client:
        kept = lambda: len(client.keys("celery-batch-cache-*")) > len(items)  # noqa: E731
        eventually(kept, f"{len(items)} answers in the cache")


def infos(results: list[Any]) -> list[BatchInfo]:
    """Return the batch information of results that are there."""
    return [batch_info(result) for result in results]


@pytest.mark.pools(*EVERY_POOL)
def test_an_answer_is_computed_once(shared: SharedSetup):
    """The second time it comes from the cache, and no model is called."""
    items = [1, 2, 3, 4, 5]
    expected = [[each, "m"] for each in items]
    first = shared.cached.delay_many(items)
    computed = shared.get(first)
    await_cached(shared, *items)
    again = shared.cached.delay_many(items)

    assert expected == computed == shared.get(again)
    assert items == sorted(shared.items("cached"))
    assert [0] * 5 == [info.cached for info in infos(first)]
    assert [(0, 1, 0.0)] * 5 == [(each.size, each.cached, each.seconds) for each in infos(again)]
    assert all(0 <= info.wait < SOON for info in infos(again))


def test_only_missing_rows_run(shared: SharedSetup):
    """Each gets its own answer, wherever it is from."""
    shared.get(shared.cached.delay_many([1, 3]))
    await_cached(shared, 1, 3)
    results = shared.cached.delay_many([1, 2, 3, 4])

    assert [[each, "m"] for each in (1, 2, 3, 4)] == shared.get(results)
    assert [1, 2, 3, 4] == sorted(shared.items("cached"))
    assert [1, 0, 1, 0] == [info.cached for info in infos(results)]
    assert all(info.size <= 2 for info in infos(results))


def test_arguments_count_as_the_function_gets_them(shared: SharedSetup):
    """By place or by name, left out or given: what differs is the value."""
    shared.cached.delay(7).get(timeout=SOON)
    await_cached(shared, 7)
    same = [shared.cached.delay(x=7), shared.cached.delay(7, unit="m"), shared.cached.delay(7, "m")]
    other = [shared.cached.delay(7, "km"), shared.cached.delay(7.0)]

    assert [[7, "m"]] * 3 == shared.get(same)
    assert [[7, "km"], [7.0, "m"]] == shared.get(other)
    assert [1, 1, 1, 0, 0] == [info.cached for info in infos([*same, *other])]


def test_errors_are_not_kept(shared: SharedSetup):
    """An item that failed runs again; the answers of its batch are kept."""
    results = shared.cached.delay_many([-1, 1])
    assert ["no -1", "[1, 'm']"] == [str(each) for each in shared.get(results)]
    await_cached(shared, 1)
    again = shared.cached.delay_many([-1, 1])

    assert ["no -1", "[1, 'm']"] == [str(each) for each in shared.get(again)]
    assert [-1, -1, 1] == sorted(shared.items("cached"))


def test_the_answer_of_another_value_is_not_kept(shared: SharedSetup):
    """Keys that are equal share a batch, whose function gets the first; only its rows are kept."""
    gate = close_both_slots(shared)
    results = [shared.reused.delay("a", unit) for unit in (1, True, 1.0)]
    shared.wait_for_buffered("f.reused", 3)
    shared.open_gate(gate)
    together = {*shared.get(results)}
    await_cached(shared, 1)

    assert 1 == len(together)
    assert ["1 1", "1 True", "1 1.0"] == [
        shared.reused.delay("a", unit).get(timeout=SOON) for unit in (1, True, 1.0)
    ]


def test_each_row_of_a_chunk_is_looked_up(shared: SharedSetup):
    """The rows of a chunk and single items share their answers."""
    shared.cached.delay(1).get(timeout=SOON)
    await_cached(shared, 1)
    chunk = shared.cached.delay_rows([1, 2, 1, 3], ["m"] * 4)
    found = chunk.get(timeout=SOON)
    await_cached(shared, 1, 2, 3)
    single = shared.cached.delay(3)
    whole = shared.cached.delay_rows([3, 2], ["m"] * 2)

    assert [[each, "m"] for each in (1, 2, 1, 3)] == found
    assert [[3, "m"], [3, "m"], [2, "m"]] == [
        single.get(timeout=SOON),
        *whole.get(timeout=SOON),
    ]
    assert [1, 2, 3] == sorted(shared.items("cached"))
    assert [(2, 2), (0, 1), (0, 2)] == [
        (info.size, info.cached) for info in infos([chunk, single, whole])
    ]


def test_a_chunk_with_a_failed_row_keeps_the_others(shared: SharedSetup):
    """They are in its error, and in the cache."""
    for _ in range(2):
        with pytest.raises(ChunkFailed) as failure:
            shared.cached.delay_rows([1, -2, 3], ["m"] * 3).get(timeout=SOON)
        assert [[1, "m"], None, [3, "m"]] == failure.value.outputs
        await_cached(shared, 1, 3)

    assert [[1, -2, 3], [-2]] == shared.batches("cached")


@pytest.mark.pools("prefork")
def test_known_answers_do_not_wait_for_the_model(shared: SharedSetup):
    """While it runs another batch they are looked up beside it, and sent."""
    shared.get(shared.cached.delay_many([1, 2]))
    await_cached(shared, 1, 2)
    first, second = shared.unique("gate"), shared.unique("gate")
    alone = shared.cached.delay(first)
    shared.wait_at(first)
    beside = shared.cached.delay_many([second, *range(10, 25)])  # a full batch, which is ready
    known = shared.cached.delay_many([1] * 8 + [2] * 8)
    shared.wait_for_buffered("f.cached", 16)
    shared.open_gate(first)
    shared.wait_at(second)  # from now on a batch is prepared while another runs
    found = shared.get(known)
    running = [result.state for result in beside]
    shared.open_gate(second)
    shared.get([alone, *beside])

    assert [[1, "m"]] * 8 + [[2, "m"]] * 8 == found
    assert ["PENDING"] * 16 == running


def test_workers_count_hits_and_misses(shared: SharedSetup):
    """As `batch_stats` shows."""
    shared.wait_for_batches("f.cached")
    before = shared.worker.status()["f.cached"]
    shared.get(shared.cached.delay_many([1, 2, 3]))
    await_cached(shared, 1, 2, 3)
    shared.get(shared.cached.delay_many([2, 3, 4]))
    shared.wait_for_batches("f.cached")
    after = shared.worker.status()["f.cached"]

    assert (2, 4, 0) == tuple(
        after[name] - before[name] for name in ("cache_hits", "cache_misses", "duplicates")
    )
