"""Calls of the model have fixed numbers of rows and lengths, with which it was warmed up."""

from __future__ import annotations

import pytest

from celery_batch import ItemTooLarge
from tests.integration.features.test_chunks import close_both_slots
from tests.services.shared_setup import SOON, SharedSetup, batch_info

#: Batches are made of what has been received, in whatever way.
pytestmark = pytest.mark.alike_on_brokers

POOLS = pytest.mark.pools("prefork", "solo", "threads")

#: Those of the sizes 1, 2 and 4 and the lengths 8, 16 and 32 that cost 64 at most.
SHAPES = [[4, 16], [2, 32], [4, 8], [2, 16], [1, 32], [2, 8], [1, 16], [1, 8]]


@POOLS
def test_calls_are_filled_up_to_their_sizes(shared: SharedSetup):
    """By repeating the last row; each gets its own output, and the padding is counted apart."""
    shared.wait_for_batches("f.sizes")
    before = shared.worker.status()["f.sizes"]
    results = shared.sizes.delay_many([1, 2, 3])
    answers = shared.get(results)
    shared.wait_for_batches("f.sizes")
    after = shared.worker.status()["f.sizes"]

    assert [2, 4, 6] == answers
    assert {2, 4, 8} >= {len(batch) for batch in shared.batches("sizes")}
    padding = len(shared.items("sizes")) - 3
    assert padding >= 1
    assert (3, padding) == tuple(after[each] - before[each] for each in ("rows", "padding_rows"))
    assert [2, 4, 8] == after["batch_sizes"]
    assert (8, True) == (after["max_batch_size"], all(batch_info(r).size <= 3 for r in results))


def test_a_bad_item_fails_alone(shared: SharedSetup):
    """Though its copies fill up the calls that it is in."""
    gate = close_both_slots(shared)
    results = shared.sizes.delay_many([1, 2, 3, 4, 13])
    shared.wait_for_buffered("f.sizes", 5)
    shared.open_gate(gate)
    found = shared.get(results)

    assert [2, 4, 6, 8] == found[:4]
    assert isinstance(found[4], ValueError)
    assert {2, 4, 8} == {len(batch) for batch in shared.batches("sizes")}


def test_a_chunk_runs_in_calls_of_the_sizes(shared: SharedSetup):
    """All are of the largest size but the last."""
    result = shared.sizes.delay_rows(list(range(20, 39)))

    assert [2 * n for n in range(20, 39)] == result.get(timeout=SOON)
    assert [8, 8, 4] == [len(batch) for batch in shared.batches("sizes")]


def test_equal_rows_run_once_before_a_call_is_filled_up(shared: SharedSetup):
    """So that copies, which are not computed, do not make the call larger."""
    result = shared.sizes.delay_rows([1, 1, 1, 2, 2, 3])

    assert [2, 2, 2, 4, 4, 6] == result.get(timeout=SOON)
    assert [[1, 2, 3, 3]] == shared.batches("sizes")


@POOLS
def test_no_shape_is_new_after_the_warm_up(shared: SharedSetup):
    """Before its first task a worker has called its model with each shape that can occur."""
    shared.worker.stop()
    before = len(shared.recall("shaped"))
    assert shared.worker.status()["f.shaped"]["warm"]
    warmed_up = [fact["shape"] for fact in shared.recall("shaped")][before:]
    lengths = [1, 7, 8, 9, 16, 17, 25, 32, 32, 3, 3, 3] * 5
    results = shared.shaped.delay_many(["x" * length for length in lengths])
    chunk = shared.shaped.delay_rows(["x" * length for length in lengths])
    answers = shared.get(results)

    assert (lengths, lengths) == (answers, chunk.get(timeout=SOON))
    assert SHAPES == warmed_up
    used = [fact["shape"] for fact in shared.recall("shaped")][before + len(SHAPES) :]
    assert [] == [shape for shape in used if shape not in SHAPES]


@pytest.mark.parametrize("words", [[], ["in_place"]], ids=str)
def test_new_weights_are_warmed_up_with_each_shape(shared: SharedSetup, words: list[str]):
    """Before a reload lets them answer requests."""
    # A process whose predecessor another test has killed may still warm up; it answers after that.
    assert 1 == shared.shaped.delay("a").get(timeout=SOON)
    before = len(shared.recall("shaped"))
    reply = shared.worker.ask("batch_reload", words=["f.shaped", *words, "wait=60"])
    warmed_up = [fact["shape"] for fact in shared.recall("shaped")][before:]

    assert "done" == reply["ok"]["state"]
    assert SHAPES == warmed_up


def test_an_item_longer_than_all_lengths_fails_alone(shared: SharedSetup):
    """It is too large for the model; the others of its batch are answered."""
    gate = close_both_slots(shared)
    results = shared.shaped.delay_many(["a", "b" * 33, "c"])
    shared.wait_for_buffered("f.shaped", 3)
    shared.open_gate(gate)
    found = shared.get(results)

    assert (1, 1) == (found[0], found[2])
    assert isinstance(found[1], ItemTooLarge)
