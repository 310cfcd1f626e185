"""One bad item fails alone, however it misbehaves; everybody else is answered."""

from __future__ import annotations

import pytest
from billiard.exceptions import WorkerLostError

from celery_batch import OutOfMemory, PoisonItem
from tests.conftest import Setup
from tests.services.shared_setup import SharedSetup


def sizes(setup: Setup | SharedSetup, kind: str) -> list[int]:
    """Return the sizes of the batches that a task has seen, in order."""
    return [len(fact["items"]) for fact in setup.recall(kind)]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_an_error_that_is_no_exception_is_of_its_item(setup: Setup, pool: str):
    """A cancellation or a panic, which Celery stores for no task, takes nobody else with it."""
    setup.worker("-P", pool, "-c", "1")
    results = [setup.deadly.delay(word) for word in ("a", "cancel", "b")]

    assert ["A", "B"] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(PoisonItem, match=r"CancelledError\('told to stop'\)"):
        results[1].get(timeout=60)


def test_an_early_acknowledged_batch_says_what_ended_it(setup: Setup):
    """With acks_late=False all of it fail, with the name of what was raised."""
    setup.worker("-c", "1", conf={"task_annotations": {"shop.deadly": {"acks_late": False}}})
    for result in setup.deadly.delay_many(["a", "cancel"]):  # in one batch
        with pytest.raises(WorkerLostError, match="told to stop"):
            result.get(timeout=60)


def test_an_error_without_a_text_is_of_its_item(setup: Setup):
    """An error whose text cannot be had is stored as Celery stores it, for its item alone."""
    setup.worker("-c", "1")
    results = [setup.deadly.delay(word) for word in ("a", "mute", "b")]

    assert ["A", "B"] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the class is the worker's)
        results[1].get(timeout=60)
    assert "Mute" == type(caught.value).__name__


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_exit_of_the_model_without_a_process_of_its_own(setup: Setup, pool: str):
    """Where the model shares the worker's process, SystemExit ends nobody but the item."""
    setup.worker("-P", pool, "-c", "1")
    results = [setup.deadly.delay(word) for word in ("a", "leave", "b")]

    assert ["A", "B"] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(PoisonItem):
        results[1].get(timeout=60)


def test_poison_is_kept_with_its_error(setup: Setup):
    """With a dead-letter queue configured, the message of a poisonous item is kept there."""
    setup.worker("-c", "1", conf={"batch_dead_letter_queue": "morgue"})
    result = setup.deadly.delay("exit")
    with pytest.raises(PoisonItem):
        result.get(timeout=60)
    with setup.app.connection_for_read() as connection, connection.SimpleQueue("morgue") as queue:
        message = queue.get(timeout=60)

    assert (result.id, 2) == (message.headers["id"], message.headers["batch_losses"])
    assert [["exit"], {}] == message.payload[:2]


def test_a_dead_letter_queue_that_the_worker_consumes_is_refused(setup: Setup):
    """Its messages would be refused and written there again, without end."""
    conf = {"batch_dead_letter_queue": "morgue"}
    slowly = {"TESTS_FORK_SECONDS": "3", "TESTS_LOAD_SECONDS": "600"}
    worker = setup.launch("-c", "1", "-Q", "counter,morgue", conf=conf, **slowly)

    assert worker.child.wait(60)
    assert 0 != worker.child.exit_code
    words = "This worker cannot start: batch_dead_letter_queue: this worker consumes 'morgue'"
    assert words in worker.log
    assert "-X morgue" in worker.log


def test_broken_device_costs_a_process_and_nobody_else(each_shared: SharedSetup):
    """After a CUDA error the process is replaced; the culprit gets it, the others answers."""
    results = each_shared.deadly.delay_many(["a", "cuda", "b"])

    assert ["A", "B"] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(RuntimeError, match="device-side assert"):
        results[1].get(timeout=60)

    pids = {fact["pid"] for fact in each_shared.recall("deadly")}
    assert 3 <= len(pids)


def test_batch_beyond_the_memory_is_split_and_remembered(setup: Setup):
    """What torch cannot hold is run in halves; later batches fit; an item too large fails alone."""
    worker = setup.worker("-c", "1")
    first = setup.hungry.delay_many(range(16))

    assert list(range(16)) == [result.get(timeout=60) for result in first]

    seen = len(sizes(setup, "hungry"))
    second = [setup.hungry.delay(n) for n in (1, 2, 3, "huge", 4, 5, 6, 7)]
    for result in second:
        result.get(timeout=60, propagate=False)
    with pytest.raises(OutOfMemory, match="one item alone does not fit"):
        second[3].get(timeout=30)

    assert [1, 2, 3, 4, 5, 6, 7] == [r.get(timeout=30) for i, r in enumerate(second) if i != 3]
    assert max(sizes(setup, "hungry")[seen:]) <= 4
    assert worker.status()["shop.hungry"]["safe_size"] <= 4


def test_function_with_side_effects_sees_no_item_twice(each_shared: SharedSetup):
    """With isolate_failures=False a bad item's error is everybody's."""
    for result in each_shared.once.delay_many(["a", "bad", "b"]):
        with pytest.raises(ValueError, match="cannot digest it"):
            result.get(timeout=60)

    assert [3] == sizes(each_shared, "once")
