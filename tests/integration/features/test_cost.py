"""Batches that are limited by cost, here the number of tokens, padded to the longest text."""

from __future__ import annotations

import random

import pytest

from celery_batch import ChunkFailed, InvalidCost, ItemTooLarge
from tests.integration.features.test_chunks import close_both_slots
from tests.services.shared_setup import SOON, SharedSetup, batch_info

#: Batches are made of what has been received, in whatever way.
pytestmark = pytest.mark.alike_on_brokers


def costs(shared: SharedSetup) -> list[int]:
    """Return what each call of the model has cost."""
    return [max(lengths) * len(lengths) for lengths in shared.batches("tokens")]


def texts(*lengths: int) -> list[str]:
    """Return texts of these lengths."""
    return ["x" * length for length in lengths]


def test_each_gets_its_own_result_from_batches_of_similar_lengths(shared: SharedSetup):
    """Those that wait are sorted by length; no call costs more than the limit."""
    lengths = random.Random(1).choices([4, 5, 6, 40, 44, 50], k=24)  # noqa: S311
    gate = close_both_slots(shared)
    results = shared.tokens.delay_many(texts(*lengths))
    shared.wait_for_buffered("f.tokens", 18)  # the broker keeps some for other workers
    shared.open_gate(gate)

    assert lengths == shared.get(results)
    assert max(costs(shared)) <= 100
    assert sorted(lengths) == sorted(shared.items("tokens"))
    # In the order of arrival a batch would have two texts, and a third of it would be padding.
    assert sum(costs(shared)) < 1.25 * sum(lengths)
    assert all(batch_info(result).size <= 25 for result in results)


def test_a_chunk_runs_in_calls_of_similar_lengths(shared: SharedSetup):
    """Its rows are sorted, and their outputs are where the rows were."""
    lengths = [50, 4, 50, 5, 4, 4, 50, 50, 4]
    result = shared.tokens.delay_rows(texts(*lengths))

    assert lengths == result.get(timeout=SOON)
    assert [[4, 4, 4, 4, 5], [50, 50], [50, 50]] == shared.batches("tokens")


def test_what_costs_more_than_a_batch_runs_alone(shared: SharedSetup):
    """An item is not refused because it is larger than a batch is meant to be."""
    gate = close_both_slots(shared)
    results = shared.tokens.delay_many(texts(120, 10, 120, 11))
    shared.wait_for_buffered("f.tokens", 4)
    shared.open_gate(gate)

    assert [120, 10, 120, 11] == shared.get(results)
    assert [[10, 11], [120], [120]] == sorted(shared.batches("tokens"))


def test_an_item_without_a_cost_fails_alone(shared: SharedSetup):
    """The others of its batch are answered; its error says what is wrong with it."""
    gate = close_both_slots(shared)
    results = [shared.tokens.delay(each) for each in ("abc", None, "x" * 151, "de")]
    shared.wait_for_buffered("f.tokens", 4)
    shared.open_gate(gate)
    found = shared.get(results)

    assert (3, 2) == (found[0], found[3])
    assert isinstance(found[1], InvalidCost)
    assert "f.tokens: the value of 'text', whose length is the cost, has no length" in str(found[1])
    assert isinstance(found[2], ItemTooLarge)
    assert "this item costs 151, and at most 150 is allowed" in str(found[2])


def test_a_row_without_a_cost_fails_in_its_chunk(shared: SharedSetup):
    """As any other row that fails: the chunk keeps the outputs of the others."""
    result = shared.tokens.delay_rows([*texts(3, 151), None, "four"])
    with pytest.raises(ChunkFailed) as failure:
        result.get(timeout=SOON)

    assert [3, None, None, 4] == failure.value.outputs
    assert "InvalidCost" in failure.value.failures[2]


def test_wrong_arguments_fail_as_ever(shared: SharedSetup):
    """What does not fit the function's parameters has no cost, and an error of its own."""
    message = shared.tokens.signature((), {"txt": "a"})

    with pytest.raises(TypeError):
        shared.app.send_task(message.task, message.args, message.kwargs).get(timeout=SOON)
    assert 6 == shared.tokens.delay("abc", times=2).get(timeout=SOON)


def test_a_body_that_is_too_large_to_decode_at_once_is_a_batch_of_its_own(shared: SharedSetup):
    """Its cost is not known before it runs; here it is more than an item may have."""
    result = shared.tokens.delay("x" * (2 << 20))

    with pytest.raises(ItemTooLarge):
        result.get(timeout=SOON)


def test_workers_report_cost_and_padding(shared: SharedSetup):
    """How much of what the model computes is padding can be seen."""
    shared.wait_for_batches("f.tokens")
    before = shared.worker.status()["f.tokens"]
    shared.tokens.delay_rows(texts(10, 10, 5)).get(timeout=SOON)
    shared.wait_for_batches("f.tokens")
    after = shared.worker.status()["f.tokens"]

    assert (100, True, 8) == tuple(
        after[name] for name in ("max_batch_cost", "padded", "sort_window")
    )
    assert (25, 30) == tuple(after[name] - before[name] for name in ("cost", "padded_cost"))


def test_an_operator_changes_the_limit_while_a_worker_runs(shared: SharedSetup):
    """The next batch keeps to it; "default" restores the task's own."""
    shared.worker.ask("batch_config", words=["f.tokens"], max_batch_cost=20)
    assert 60 == sum(shared.tokens.delay_rows(texts(*[10] * 6)).get(timeout=SOON))
    shared.worker.ask("batch_config", words=["f.tokens", "default"])
    assert 60 == sum(shared.tokens.delay_rows(texts(*[10] * 6)).get(timeout=SOON))

    assert [2, 2, 2, 6] == [len(batch) for batch in shared.batches("tokens")]
