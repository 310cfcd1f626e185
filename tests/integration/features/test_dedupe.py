"""Equal items that wait at the same time are computed in one row, and answered each."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from celery_batch import PoisonItem
from tests.integration.features.test_chunks import close_both_slots
from tests.services.shared_setup import SOON, SharedSetup, batch_info

pytestmark = pytest.mark.alike_on_brokers

EVERY_POOL = ("prefork", "threads")  # on solo nothing waits while a batch runs


@pytest.mark.pools(*EVERY_POOL)
def test_equal_items_are_one_row(shared: SharedSetup):
    """They leave together, beside others, and each has its own result."""
    gate = close_both_slots(shared)
    items = [1, 2, 1, 1, 3, 2, 4, 5, 1]
    results = shared.deduped.delay_many(items)
    shared.wait_for_buffered("f.deduped", len(items))
    shared.open_gate(gate)

    assert [[each, "m"] for each in items] == shared.get(results)
    assert [[1, 2, 3, 4], [5]] == sorted(shared.batches("deduped"))
    assert len(items) == len({result.id for result in results})
    assert ["SUCCESS"] * len(items) == [result.state for result in results]
    assert {4, 1} == {batch_info(result).size for result in results}


def test_what_differs_is_another_row(shared: SharedSetup):
    """Equal arguments are equal however they were passed; 1, 1.0 and True are not."""
    gate = close_both_slots(shared)
    results = [
        shared.deduped.delay(1),
        shared.deduped.delay(x=1),
        shared.deduped.delay(1, "m"),
        shared.deduped.delay(1.0),
        shared.deduped.delay(x=True),
        shared.deduped.delay(1, "km"),
    ]
    shared.wait_for_buffered("f.deduped", len(results))
    shared.open_gate(gate)

    assert [[1, "m"]] * 3 == shared.get(results)[:3]
    assert [[1, 1.0, True, 1]] == shared.batches("deduped")


def test_rows_of_chunks_share_rows_with_items(shared: SharedSetup):
    """In the batch in which they run anyway."""
    gate = close_both_slots(shared)
    chunk = shared.deduped.delay_rows([1, 2, 1], ["m"] * 3)
    single = shared.deduped.delay(2)
    shared.wait_for_buffered("f.deduped", 2)
    shared.open_gate(gate)

    assert [[1, "m"], [2, "m"], [1, "m"]] == chunk.get(timeout=SOON)
    assert [2, "m"] == single.get(timeout=SOON)
    assert [[1, 2]] == shared.batches("deduped")


def test_a_revoked_item_is_left_out_and_the_others_run(shared: SharedSetup):
    """Whichever of them came first."""
    gate = close_both_slots(shared)
    first, *rest = shared.deduped.delay_many([1, 1, 1])
    shared.wait_for_buffered("f.deduped", 3)
    first.revoke()
    shared.app.control.ping([shared.worker.name], timeout=SOON, limit=1)
    shared.open_gate(gate)

    assert [[1, "m"]] * 2 == shared.get(rest)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=SOON)
    assert [[1]] == shared.batches("deduped")


def test_equal_items_that_fail_are_retried_each(shared: SharedSetup):
    """They are one row of the first try, and of the second if they wait together again."""
    gate = close_both_slots(shared)
    results = shared.deduped.delay_many([-1, -1, 2])
    shared.wait_for_buffered("f.deduped", 3)
    shared.open_gate(gate)
    found = shared.get(results)

    assert ["KeyError", "KeyError"] == [type(each).__name__ for each in found[:2]]
    assert [2, "m"] == found[2]
    assert [-1, 2] == sorted(shared.batches("deduped")[0])
    assert 2 <= shared.items("deduped").count(-1) <= 3


def test_isolation_sees_one_row(shared: SharedSetup):
    """All equal items get the error of their row; the others are answered."""
    gate = close_both_slots(shared)
    results = shared.deduped.delay_many(["raise", "a", "raise", "b"])
    shared.wait_for_buffered("f.deduped", 4)
    shared.open_gate(gate)
    found = shared.get(results)

    assert ["raise", "raise"] == [str(found[0]), str(found[2])]
    assert [["a", "m"], ["b", "m"]] == [found[1], found[3]]
    assert 1 == shared.batches("deduped").count(["raise"])


@pytest.mark.pools("prefork")
def test_losses_are_counted_for_each(shared: SharedSetup):
    """After the process died each runs alone; each that ends it again is poison."""
    gate = close_both_slots(shared)
    results = shared.deduped.delay_many(["exit", "exit", "fine"])
    shared.wait_for_buffered("f.deduped", 3)
    shared.open_gate(gate)
    found = shared.get(results)

    assert [PoisonItem, PoisonItem] == [type(each) for each in found[:2]]
    assert ["fine", "m"] == found[2]


def test_a_paused_task_keeps_all_of_them(shared: SharedSetup):
    """They are set aside, and are one row again afterwards."""
    gate = close_both_slots(shared)
    results = shared.deduped.delay_many([1, 1, 2])
    shared.wait_for_buffered("f.deduped", 3)
    shared.worker.ask("batch_pause", task="f.deduped")
    waiting = shared.worker.status()["f.deduped"]["waiting"]
    shared.worker.ask("batch_resume", task="f.deduped")
    shared.open_gate(gate)

    assert 3 == waiting
    assert [[1, "m"], [1, "m"], [2, "m"]] == shared.get(results)
    assert [[1, 2]] == [sorted(batch) for batch in shared.batches("deduped")]


def test_items_are_reused_beside_all_other_rules(shared: SharedSetup):
    """Batches by key, limited by padded cost, of fixed sizes, whose answers are kept."""
    with shared.memory() as client:
        if keys := client.keys("celery-batch-cache-*"):
            client.delete(*keys)
    calls = [("aa", "m"), ("b", "m"), ("aa", "s"), ("aa", "m"), ("b", "m"), ("cc", "m"), ("b", "s")]
    gate = close_both_slots(shared)
    results = [shared.reused.delay(*call) for call in calls]
    shared.wait_for_buffered("f.reused", len(calls))
    shared.open_gate(gate)
    expected = [f"{len(text)} {unit}" for text, unit in calls]
    found = shared.get(results)
    facts = shared.recall("reused")
    chunk = shared.reused.delay_rows(["b", "dddd", "aa", "cc", "eeee", "b"], "m")

    assert expected == found
    assert ["1 m", "4 m", "2 m", "2 m", "4 m", "1 m"] == chunk.get(timeout=SOON)
    assert {"m", "s"} == {fact["unit"] for fact in facts}
    assert all(len(fact["items"]) in (1, 2, 4) for fact in facts)
    rows = {(each, fact["unit"]) for fact in facts for each in fact["items"]}
    assert set(calls) == rows
    assert sum(len(fact["items"]) for fact in facts) <= 4 + 2
    later = shared.recall("reused")[len(facts) :]
    assert {"dddd", "eeee"} <= {each for fact in later for each in fact["items"]}
