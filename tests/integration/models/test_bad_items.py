"""One bad item fails alone, however it misbehaves; everybody else is answered."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError

from celery_batch import OutOfMemory, PoisonItem
from tests.conftest import Setup
from tests.services.shared_setup import SharedSetup


def sizes(setup: Setup | SharedSetup, kind: str) -> list[int]:
    """Return the sizes of the batches that a task has seen, in order."""
    return [len(fact["items"]) for fact in setup.recall(kind)]


@pytest.mark.parametrize("way", ["exit", "kill", "leave"])
def test_item_that_takes_its_process_down_fails_alone(each_shared: SharedSetup, way: str):
    """Innocents of a dead process are answered; the culprit is poison after the second loss."""
    results = [each_shared.deadly.delay(word) for word in ("a", "b", way, "c")]

    assert ["A", "B", "C"] == [results[i].get(timeout=60) for i in (0, 1, 3)]
    with pytest.raises(PoisonItem, match="took down the process that ran it 2 times"):
        results[2].get(timeout=60)

    assert "NEXT" == each_shared.deadly.delay("next").get(timeout=30)
    assert 2 == sum(way in fact["items"] for fact in each_shared.recall("deadly"))


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
    results = [setup.deadly.delay(word) for word in ("a", "cancel")]
    for result in results:
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


def test_early_acknowledged_batch_is_not_run_again(setup: Setup):
    """With acks_late=False a lost process fails its batch, as in Celery: nothing runs twice."""
    setup.worker("-c", "1", conf={"task_annotations": {"shop.deadly": {"acks_late": False}}})
    results = [setup.deadly.delay(word) for word in ("a", "exit")]
    for result in results:
        with pytest.raises(WorkerLostError):
            result.get(timeout=60)

    assert [2] == sizes(setup, "deadly")


def test_broken_device_costs_a_process_and_nobody_else(each_shared: SharedSetup):
    """After a CUDA error the process is replaced; the culprit gets it, the others answers."""
    results = [each_shared.deadly.delay(word) for word in ("a", "cuda", "b")]

    assert ["A", "B"] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(RuntimeError, match="device-side assert"):
        results[1].get(timeout=60)

    pids = {fact["pid"] for fact in each_shared.recall("deadly")}
    assert 3 <= len(pids)


def test_batch_over_its_hard_limit(each_shared: SharedSetup):
    """The item that takes too long fails within limit + 5 s; its neighbours are answered."""
    began = time.monotonic()
    results = [each_shared.sluggish.apply_async((s,), time_limit=2.0) for s in (0, 30, 0)]

    assert [0, 0] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(TimeLimitExceeded, match=r"2\.0"):
        results[1].get(timeout=60)
    assert time.monotonic() - began < 2.0 + 5.0 + 15.0  # the last for a loaded machine


def test_batch_over_its_soft_limit(each_shared: SharedSetup):
    """The soft limit of a batch is no neighbour's error, and the process lives on."""
    results = [each_shared.sluggish.apply_async((s,), soft_time_limit=1.0) for s in (0, 30, 0)]

    assert [0, 0] == [results[i].get(timeout=60) for i in (0, 2)]
    with pytest.raises(SoftTimeLimitExceeded):
        results[1].get(timeout=60)
    assert 1 == len({fact["pid"] for fact in each_shared.recall("sluggish")})


def test_batch_beyond_the_memory_is_split_and_remembered(setup: Setup):
    """What torch cannot hold is run in halves; later batches fit; an item too large fails alone."""
    worker = setup.worker("-c", "1")
    first = [setup.hungry.delay(n) for n in range(16)]

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
    results = [each_shared.once.delay(word) for word in ("a", "bad", "b")]
    for result in results:
        with pytest.raises(ValueError, match="cannot digest it"):
            result.get(timeout=60)

    assert [3] == sizes(each_shared, "once")


def test_terminated_request_spares_its_neighbours(each_shared: SharedSetup):
    """revoke(terminate=True) ends that request at once; the batch, and its process, go on."""
    results = [each_shared.sluggish.delay(s) for s in (0.5, 1.0, 0.5)]
    running(each_shared, "sluggish")
    each_shared.app.control.revoke(results[1].id, terminate=True)
    with pytest.raises(TaskRevokedError, match="terminated"):
        results[1].get(timeout=30)

    assert [0.5, 0.5] == [results[i].get(timeout=60) for i in (0, 2)]
    assert "REVOKED" == results[1].state
    assert 1 == len(sizes(each_shared, "sluggish"))


def running(setup: SharedSetup, kind: str) -> None:
    """Return when a task has begun a batch."""
    for _ in patience():
        if setup.recall(kind):
            return


def patience(seconds: float = 30.0) -> Iterator[None]:
    """Give a caller time to ask again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
    pytest.fail(f"it did not happen within {seconds} s")
