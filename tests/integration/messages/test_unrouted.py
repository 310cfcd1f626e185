"""Batch tasks whose messages come to a queue that they are not routed to."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Queue

from celery_batch import MessageTooLarge
from tests.services.setup import Setup, Worker
from tests.services.shared_setup import eventually

#: Twelve whole batches and a bit.
ROWS = 200


def send(setup: Setup) -> list[Any]:
    """Ask for many doubles, with a queue that only the call names."""
    return setup.double.apply_many([((n,), None) for n in range(ROWS)], queue="slow")


def answers(results: list[Any]) -> list[Any]:
    """Wait for every result."""
    return [result.get(timeout=60) for result in results]


def sizes(setup: Setup, kind: str) -> list[int]:
    """Return how many items each batch had, the first one first."""
    return [len(fact["items"]) for fact in setup.recall(kind)]


def forget_queue(setup: Setup) -> None:
    """Begin with an empty queue on a server that other tests have used."""
    with setup.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("slow")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_whole_batches_after_the_first(each_setup: Setup, pool: str):
    """A queue that only the call names gives batches as large as any other."""
    forget_queue(each_setup)
    worker = each_setup.worker("-P", pool, "-c", "1", "-Q", "slow")
    results = send(each_setup)

    assert [2 * n for n in range(ROWS)] == answers(results)
    assert 16 == max(sizes(each_setup, "double"))
    assert len(sizes(each_setup, "double")) <= 2 * ROWS / 16
    assert worker.status()["shop.double"]["requests"] == ROWS


def test_the_start_says_what_is_not_warm(setup: Setup):
    """``-Q`` with no queue of a batch task is warned of, and so is the cold model later."""
    worker = setup.worker("-c", "1", "-Q", "slow")
    at_start = worker.log
    answered = setup.clerk.apply_async((7,), queue="slow").get(timeout=60)

    assert "-Q slow: no batch task is routed" in at_start
    assert "shop.clerk" not in at_start.partition("-Q slow")[2].partition("ready.")[2]
    assert 7 == answered[0]
    assert "shop.clerk comes to a queue that it was not routed to" in worker.log
    assert "this request loads its model" in worker.log


def test_only_what_is_not_routed_is_told_where_some_are(setup: Setup):
    """A worker of some batch tasks says of the others that their models are not loaded."""
    worker = setup.worker("-c", "1", "-Q", "celery")

    assert "no batch task is routed" not in worker.log
    assert (
        "Not loaded at the start, since they are routed to other queues: shop.clerk" in worker.log
    )


def test_limits_of_size_come_with_the_first_batch_task(each_setup: Setup):
    """Batch tasks have a limit where the first one comes late, and ordinary tasks never."""
    forget_queue(each_setup)
    worker = each_setup.worker("-c", "1", "-Q", "slow", conf={"batch_max_message_size": 20_000})
    large = {"queue": "slow", "headers": {"padding": "x" * 30_000}}
    answer = each_setup.plain.apply_async((1,), **large).get(timeout=60)
    with pytest.raises(MessageTooLarge):
        each_setup.double.apply_async(("x" * 30_000,), queue="slow").get(timeout=60)
    each_setup.double.apply_async((1,), queue="slow").get(timeout=60)
    later = each_setup.size.apply_async(("x" * 30_000,), queue="slow").get(timeout=60)

    assert (2, 30_000) == (answer, later)
    assert 1 == worker.log.count("Refused a message")


def test_a_replaced_process_has_the_model_warm(setup: Setup):
    """What has come once is loaded at the start of the processes that come later."""
    worker = setup.worker("-c", "1", "-Q", "slow")
    setup.clerk.apply_async((1,), queue="slow").get(timeout=60)
    setup.deadly.apply_async(("kill",), queue="slow").get(timeout=60, propagate=False)
    eventually(lambda: 2 == len(setup.recall("load")), "the second process to load")

    assert 2 == len({fact["pid"] for fact in setup.recall("load")})
    assert worker.child.exit_code is None


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_devices_are_those_of_the_settings(setup: Setup, pool: str):
    """A model that is loaded late lives where the settings say."""
    conf = {"batch_devices": ["cuda:1"]}
    setup.worker("-P", pool, "-c", "1", "-Q", "slow", conf=conf, CUDA_VISIBLE_DEVICES="4,5")
    setup.clerk.apply_async((1,), queue="slow").get(timeout=60)
    (loaded,) = setup.recall("load")

    assert ("cuda:0", "5") == (loaded["device"], loaded["visible"])


def test_nothing_changes_before_a_batch_task_comes(setup: Setup):
    """A worker of ordinary tasks keeps prefetch and devices, and serves no batch task yet."""
    worker = setup.worker("-c", "1", "-Q", "slow")
    answered = setup.plain.apply_async((1,), queue="slow").get(timeout=60)

    assert 2 == answered
    assert 4 == worker.stats()["prefetch_count"]
    assert {} == worker.status()


def test_the_prefetch_is_the_batches_own(each_setup: Setup):
    """The first message lifts the prefetch to what the batches of its task can use."""
    forget_queue(each_setup)
    worker = each_setup.worker("-c", "1", "-Q", "slow")
    each_setup.double.apply_async((1,), queue="slow").get(timeout=60)

    assert 48 == eventually(lambda: lifted(worker), "a larger prefetch")


def lifted(worker: Worker) -> int | None:
    """Return the prefetch when it is no longer what the worker began with."""
    prefetch: int = worker.stats()["prefetch_count"]
    return prefetch if prefetch != 4 else None


def test_metrics_begin_with_the_first_message(setup: Setup):
    """The port is left to others until there is something to tell."""
    worker = setup.worker("-c", "1", "-Q", "slow", CELERY_BATCH_METRICS="127.0.0.1:0")
    before = worker.log
    setup.double.apply_async((1,), queue="slow").get(timeout=60)
    eventually(lambda: "Metrics for Prometheus" in worker.log, "metrics")

    assert "Metrics for Prometheus" not in before


def test_whole_batches_where_each_queue_has_a_prefetch_of_its_own(rabbit_setup: Setup):
    """With a quorum queue a larger prefetch is for those who consume from then on."""
    queue = Queue("steady", queue_arguments={"x-queue-type": "quorum"})
    conf = {"task_create_missing_queue_type": "quorum"}
    worker = rabbit_setup.worker("-c", "1", "-Q", queue.name, conf=conf)
    rows = [((n,), None) for n in range(ROWS)]
    results = rabbit_setup.double.apply_many(rows, queue=queue)

    assert [2 * n for n in range(ROWS)] == answers(results)
    assert 16 == max(sizes(rabbit_setup, "double"))
    assert worker.status()["shop.double"]["requests"] == ROWS


def test_a_larger_batch_of_a_queue_with_a_prefetch_of_its_own(rabbit_setup: Setup):
    """What an operator changes holds at once for a quorum queue, too."""
    conf = {"task_create_missing_queue_type": "quorum", "task_default_queue_type": "quorum"}
    worker = rabbit_setup.worker("-c", "1", "-Q", "firm", conf=conf, TESTS_QUEUE="firm")
    count = 900  # more than the worker holds before, for all of its tasks
    worker.ask("batch_config", task="shop.double", max_batch_size=count, max_wait=50, linger=50)
    queue = Queue("firm", queue_arguments={"x-queue-type": "quorum"})
    results = rabbit_setup.double.apply_many([((n,), None) for n in range(count)], queue=queue)

    assert [2 * n for n in range(count)] == answers(results)
    assert [count] == sizes(rabbit_setup, "double")
