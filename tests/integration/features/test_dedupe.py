"""Equal items that wait at the same time are computed in one row, and answered each."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from celery_batch import PoisonItem
from tests.integration.features.test_chunks import close_both_slots
from tests.services.place import SOON, Place, batch_info

pytestmark = pytest.mark.alike_on_brokers

EVERY_POOL = ("prefork", "threads")  # on solo nothing waits while a batch runs


@pytest.mark.pools(*EVERY_POOL)
def test_equal_items_are_one_row(place: Place):
    """They leave together, beside others, and each has its own result."""
    gate = close_both_slots(place)
    items = [1, 2, 1, 1, 3, 2, 4, 5, 1]
    results = place.deduped.delay_many(items)
    place.wait_for_buffered("f.deduped", len(items))
    place.open_gate(gate)

    assert [[each, "m"] for each in items] == place.get(results)
    assert [[1, 2, 3, 4], [5]] == sorted(place.batches("deduped"))
    assert len(items) == len({result.id for result in results})
    assert ["SUCCESS"] * len(items) == [result.state for result in results]
    assert {4, 1} == {batch_info(result).size for result in results}


def test_what_differs_is_another_row(place: Place):
    """Equal arguments are equal however they were passed; 1, 1.0 and True are not."""
    gate = close_both_slots(place)
    results = [
        *(place.deduped.delay(1), place.deduped.delay(x=1), place.deduped.delay(1, "m")),
        *(place.deduped.delay(1.0), place.deduped.delay(x=True), place.deduped.delay(1, "km")),
    ]
    place.wait_for_buffered("f.deduped", len(results))
    place.open_gate(gate)

    assert [[1, "m"]] * 3 == place.get(results)[:3]
    assert [[1, 1.0, True, 1]] == place.batches("deduped")


def test_rows_of_chunks_share_rows_with_items(place: Place):
    """In the batch in which they run anyway."""
    gate = close_both_slots(place)
    chunk = place.deduped.delay_rows([1, 2, 1], ["m"] * 3)
    single = place.deduped.delay(2)
    place.wait_for_buffered("f.deduped", 2)
    place.open_gate(gate)

    assert [[1, "m"], [2, "m"], [1, "m"]] == chunk.get(timeout=SOON)
    assert [2, "m"] == single.get(timeout=SOON)
    assert [[1, 2]] == place.batches("deduped")


def test_a_revoked_item_is_left_out_and_the_others_run(place: Place):
    """Whichever of them came first."""
    gate = close_both_slots(place)
    first, *rest = place.deduped.delay_many([1, 1, 1])
    place.wait_for_buffered("f.deduped", 3)
    first.revoke()
    place.app.control.ping(timeout=SOON, limit=1)
    place.open_gate(gate)

    assert [[1, "m"]] * 2 == place.get(rest)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=SOON)
    assert [[1]] == place.batches("deduped")


def test_equal_items_that_fail_are_retried_each(place: Place):
    """They are one row of the first try, and of the second if they wait together again."""
    gate = close_both_slots(place)
    results = place.deduped.delay_many([-1, -1, 2])
    place.wait_for_buffered("f.deduped", 3)
    place.open_gate(gate)
    found = place.get(results)

    assert ["KeyError", "KeyError"] == [type(each).__name__ for each in found[:2]]
    assert [2, "m"] == found[2]
    assert [-1, 2] == sorted(place.batches("deduped")[0])
    assert 2 <= place.items("deduped").count(-1) <= 3


def test_isolation_sees_one_row(place: Place):
    """All equal items get the error of their row; the others are answered."""
    gate = close_both_slots(place)
    results = place.deduped.delay_many(["raise", "a", "raise", "b"])
    place.wait_for_buffered("f.deduped", 4)
    place.open_gate(gate)
    found = place.get(results)

    assert ["raise", "raise"] == [str(found[0]), str(found[2])]
    assert [["a", "m"], ["b", "m"]] == [found[1], found[3]]
    assert 1 == place.batches("deduped").count(["raise"])


@pytest.mark.pools("prefork")
def test_losses_are_counted_for_each(place: Place):
    """After the process died each runs alone; each that ends it again is poison."""
    gate = close_both_slots(place)
    results = place.deduped.delay_many(["exit", "exit", "fine"])
    place.wait_for_buffered("f.deduped", 3)
    place.open_gate(gate)
    found = place.get(results)

    assert [PoisonItem, PoisonItem] == [type(each) for each in found[:2]]
    assert ["fine", "m"] == found[2]


def test_a_paused_task_keeps_all_of_them(place: Place):
    """They are set aside, and are one row again afterwards."""
    gate = close_both_slots(place)
    results = place.deduped.delay_many([1, 1, 2])
    place.wait_for_buffered("f.deduped", 3)
    place.worker.ask("batch_pause", task="f.deduped")
    waiting = place.worker.status()["f.deduped"]["waiting"]
    place.worker.ask("batch_resume", task="f.deduped")
    place.open_gate(gate)

    assert 3 == waiting
    assert [[1, "m"], [1, "m"], [2, "m"]] == place.get(results)
    assert [[1, 2]] == [sorted(batch) for batch in place.batches("deduped")]


def test_items_are_reused_beside_all_other_rules(place: Place):
    """Batches by key, limited by padded cost, of fixed sizes, whose answers are kept."""
    with place.memory() as client:
        if keys := client.keys("celery-batch-cache-*"):
            client.delete(*keys)
    calls = [("aa", "m"), ("b", "m"), ("aa", "s"), ("aa", "m"), ("b", "m"), ("cc", "m"), ("b", "s")]
    gate = close_both_slots(place)
    results = [place.reused.delay(*call) for call in calls]
    place.wait_for_buffered("f.reused", len(calls))
    place.open_gate(gate)
    expected = [f"{len(text)} {unit}" for text, unit in calls]
    found = place.get(results)
    facts = place.recall("reused")
    chunk = place.reused.delay_rows(["b", "dddd", "aa", "cc", "eeee", "b"], "m")

    assert expected == found
    assert ["1 m", "4 m", "2 m", "2 m", "4 m", "1 m"] == chunk.get(timeout=SOON)
    assert {"m", "s"} == {fact["unit"] for fact in facts}
    assert all(len(fact["items"]) in (1, 2, 4) for fact in facts)
    rows = {(each, fact["unit"]) for fact in facts for each in fact["items"]}
    assert set(calls) == rows
    assert sum(len(fact["items"]) for fact in facts) <= 4 + 2
    later = place.recall("reused")[len(facts) :]
    assert {"dddd", "eeee"} <= {each for fact in later for each in fact["items"]}
