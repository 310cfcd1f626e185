"""Answers are kept in Redis, and used again."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch import BatchInfo, ChunkFailed
from tests.integration.features.test_chunks import close_both_slots
from tests.services.place import SOON, Place, batch_info, eventually

pytestmark = pytest.mark.alike_on_brokers

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.fixture(autouse=True)
def empty_cache(place: Place) -> None:
    """Forget the answers of other tests, whose workers share this Redis."""
    with place.memory() as client:
        if keys := client.keys("celery-batch-cache-*"):
            client.delete(*keys)


def await_cached(place: Place, *items: int) -> None:
    """Return when so many more answers are kept: results are there a moment before."""
    with place.memory() as client:
        kept = lambda: len(client.keys("celery-batch-cache-*")) > len(items)  # noqa: E731
        eventually(kept, f"{len(items)} answers in the cache")


def infos(results: list[Any]) -> list[BatchInfo]:
    """Return the batch information of results that are there."""
    return [batch_info(result) for result in results]


@pytest.mark.pools(*EVERY_POOL)
def test_an_answer_is_computed_once(place: Place):
    """The second time it comes from the cache, and no model is called."""
    items = [1, 2, 3, 4, 5]
    expected = [[each, "m"] for each in items]
    first = place.cached.delay_many(items)
    computed = place.get(first)
    await_cached(place, *items)
    again = place.cached.delay_many(items)

    assert expected == computed == place.get(again)
    assert items == sorted(place.items("cached"))
    assert [0] * 5 == [info.cached for info in infos(first)]
    assert [(0, 1, 0.0)] * 5 == [(each.size, each.cached, each.seconds) for each in infos(again)]
    assert all(0 <= info.wait < SOON for info in infos(again))


def test_only_missing_rows_run(place: Place):
    """Each gets its own answer, wherever it is from."""
    place.get(place.cached.delay_many([1, 3]))
    await_cached(place, 1, 3)
    results = place.cached.delay_many([1, 2, 3, 4])

    assert [[each, "m"] for each in (1, 2, 3, 4)] == place.get(results)
    assert [1, 2, 3, 4] == sorted(place.items("cached"))
    assert [1, 0, 1, 0] == [info.cached for info in infos(results)]
    assert all(info.size <= 2 for info in infos(results))


def test_arguments_count_as_the_function_gets_them(place: Place):
    """By place or by name, left out or given: what differs is the value."""
    place.cached.delay(7).get(timeout=SOON)
    await_cached(place, 7)
    same = [place.cached.delay(x=7), place.cached.delay(7, unit="m"), place.cached.delay(7, "m")]
    other = [place.cached.delay(7, "km"), place.cached.delay(7.0)]

    assert [[7, "m"]] * 3 == place.get(same)
    assert [[7, "km"], [7.0, "m"]] == place.get(other)
    assert [1, 1, 1, 0, 0] == [info.cached for info in infos([*same, *other])]


def test_errors_are_not_kept(place: Place):
    """An item that failed runs again; the answers of its batch are kept."""
    results = place.cached.delay_many([-1, 1])
    assert ["no -1", "[1, 'm']"] == [str(each) for each in place.get(results)]
    await_cached(place, 1)
    again = place.cached.delay_many([-1, 1])

    assert ["no -1", "[1, 'm']"] == [str(each) for each in place.get(again)]
    assert [-1, -1, 1] == sorted(place.items("cached"))


def test_the_answer_of_another_value_is_not_kept(place: Place):
    """Keys that are equal share a batch, whose function gets the first; only its rows are kept."""
    gate = close_both_slots(place)
    results = [place.reused.delay("a", unit) for unit in (1, True, 1.0)]
    place.wait_for_buffered("f.reused", 3)
    place.open_gate(gate)
    together = {*place.get(results)}
    await_cached(place, 1)

    assert 1 == len(together)
    assert ["1 1", "1 True", "1 1.0"] == [
        place.reused.delay("a", unit).get(timeout=SOON) for unit in (1, True, 1.0)
    ]


def test_each_row_of_a_chunk_is_looked_up(place: Place):
    """The rows of a chunk and single items share their answers."""
    place.cached.delay(1).get(timeout=SOON)
    await_cached(place, 1)
    chunk = place.cached.delay_rows([1, 2, 1, 3], ["m"] * 4)
    found = chunk.get(timeout=SOON)
    await_cached(place, 1, 2, 3)
    single = place.cached.delay(3)
    whole = place.cached.delay_rows([3, 2], ["m"] * 2)

    assert [[each, "m"] for each in (1, 2, 1, 3)] == found
    assert [[3, "m"], [3, "m"], [2, "m"]] == [
        single.get(timeout=SOON),
        *whole.get(timeout=SOON),
    ]
    assert [1, 2, 3] == sorted(place.items("cached"))
    assert [(2, 2), (0, 1), (0, 2)] == [
        (info.size, info.cached) for info in infos([chunk, single, whole])
    ]


def test_a_chunk_with_a_failed_row_keeps_the_others(place: Place):
    """They are in its error, and in the cache."""
    for _ in range(2):
        with pytest.raises(ChunkFailed) as failure:
            place.cached.delay_rows([1, -2, 3], ["m"] * 3).get(timeout=SOON)
        assert [[1, "m"], None, [3, "m"]] == failure.value.outputs
        await_cached(place, 1, 3)

    assert [[1, -2, 3], [-2]] == place.batches("cached")


@pytest.mark.pools("prefork")
def test_known_answers_do_not_wait_for_the_model(place: Place):
    """While it runs another batch they are looked up beside it, and sent."""
    place.get(place.cached.delay_many([1, 2]))
    await_cached(place, 1, 2)
    first, second = place.unique("gate"), place.unique("gate")
    alone = place.cached.delay(first)
    place.wait_at(first)
    beside = place.cached.delay_many([second, *range(10, 25)])  # a full batch, which is ready
    known = place.cached.delay_many([1] * 8 + [2] * 8)
    place.wait_for_buffered("f.cached", 16)
    place.open_gate(first)
    place.wait_at(second)  # from now on a batch is prepared while another runs
    found = place.get(known)
    running = [result.state for result in beside]
    place.open_gate(second)
    place.get([alone, *beside])

    assert [[1, "m"]] * 8 + [[2, "m"]] * 8 == found
    assert ["PENDING"] * 16 == running


def test_workers_count_hits_and_misses(place: Place):
    """As `batch_stats` shows."""
    place.wait_for_batches("f.cached")
    before = place.worker.status()["f.cached"]
    place.get(place.cached.delay_many([1, 2, 3]))
    await_cached(place, 1, 2, 3)
    place.get(place.cached.delay_many([2, 3, 4]))
    place.wait_for_batches("f.cached")
    after = place.worker.status()["f.cached"]

    assert (2, 4, 0) == tuple(
        after[name] - before[name] for name in ("cache_hits", "cache_misses", "duplicates")
    )
