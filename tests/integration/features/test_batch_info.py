"""What a caller is told of how its answer was made."""

from __future__ import annotations

import pytest
from celery.result import AsyncResult

from celery_batch import BatchInfo
from tests.services.shared_setup import SOON, SharedSetup, batch_info

pytestmark = pytest.mark.alike_on_brokers

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_answer_tells_of_its_batch(shared: SharedSetup):
    """Items that ran together know how many they were, how long it took, and where."""
    words = [shared.unique("facts") for _ in range(5)]
    gate = shared.close_gate()
    results = shared.echo.delay_many(words)
    before = [result.batch_info for result in results[-1:]]
    shared.open_gate(gate)
    shared.get(results)
    facts = [batch_info(result) for result in results]
    company = {word: len(batch) for batch in shared.batches("echo") for word in batch}

    assert [None] == before
    assert [company[word] for word in words] == [each.size for each in facts]
    assert {shared.worker.name} == {each.worker for each in facts}
    assert all(0 < each.wait < SOON and 0 < each.seconds < SOON for each in facts)
    assert 1 < max(company.values())
    assert [result.batch_info for result in results] == facts


def test_answer_of_a_batch_that_was_cut_tells_of_the_last_call(shared: SharedSetup):
    """Whoever stood alone in the end was in a batch of one, whatever it began as."""
    results = [shared.raises_on.delay(word) for word in ("fine", "bad", "good", "well")]
    shared.get(results)
    batches = shared.batches("raises_on")
    last = {word: batch for batch in batches for word in batch}

    assert [len(last[word]) for word in ("fine", "bad", "good", "well")] == [
        batch_info(result).size for result in results
    ]
    assert 1 == batch_info(results[1]).size


def test_answer_of_a_retry_tells_of_the_last_try(shared: SharedSetup):
    """A task that was tried again has the facts of the call that gave the answer."""
    result = shared.act.delay(shared.unique("retry"))
    result.get(timeout=SOON)

    assert 1 == batch_info(result).size
    assert batch_info(result).wait < SOON


def test_chunk_counts_in_rows(shared: SharedSetup):
    """The size of a chunk's batch is in rows, of one call of the model."""
    small, large = shared.rows.delay_rows(range(10)), shared.rows.delay_rows(range(150))
    shared.get([small, large])
    sizes = {fact["size"] for fact in shared.recall("rows")}

    assert {batch_info(small).size, batch_info(large).size} <= sizes
    assert 10 <= batch_info(small).size <= 64
    assert 64 == batch_info(large).size


def test_nobody_else_knows(shared: SharedSetup):
    """Ordinary tasks, other results of the id and ends without a model call tell of no batch."""
    plain = shared.plain_add.delay(1)
    expired = shared.echo.apply_async((1,), expires=-1)
    known = shared.echo.delay(1)
    shared.get([plain, expired, known])

    assert isinstance(batch_info(known), BatchInfo)
    assert (None, None) == (expired.batch_info, shared.echo.apply((1,)).batch_info)
    assert not hasattr(AsyncResult(known.id, app=shared.app), "batch")


def test_what_is_stored_is_celery_s(shared: SharedSetup):
    """The facts are told beside the result, and never stored in it."""
    result = shared.echo.delay("stored")
    result.get(timeout=SOON)
    stored = shared.app.backend.get_task_meta(result.id)

    assert batch_info(result)
    assert {"status", "result", "traceback", "children", "date_done", "task_id"} | {
        "name",
        "args",
        "kwargs",
        "worker",
        "retries",
        "queue",
    } == set(stored)
