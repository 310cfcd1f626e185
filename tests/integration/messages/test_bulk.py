"""The bulk message path keeps kombu's books and Celery's results, byte for byte."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest
from kombu import Connection

from celery_batch.processes.managed_process import wait_until
from tests.conftest import Setup, Worker

BOTH = pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "one by one"])


def held(setup: Setup) -> tuple[dict[str, list], list[str]]:
    """Return what Redis holds as unacknowledged: the messages by tag, and the tags' index."""
    client = setup.memory()
    kept = {tag.decode(): json.loads(entry) for tag, entry in client.hgetall("unacked").items()}
    index = [tag.decode() for tag in client.zrange("unacked_index", 0, -1)]
    client.close()
    return kept, index


def rest_from_reading(setup: Setup, worker: Worker, sent: int) -> None:
    """Stop the pool, and return when the worker is not about to read a message."""
    for process in psutil.Process(worker.pid).children():
        process.suspend()
    looks = []

    def why_not() -> str:
        # What stock Celery has read and not yet written down would be lost with it.
        with setup.memory() as client:
            stored = len(client.keys("celery-task-meta-*"))
            looks.append((client.llen("celery"), client.hlen("unacked"), stored))
        settled = sum(looks[-1]) >= sent and len(set(looks[-4:])) == 1 and len(looks) > 3
        return "" if settled else f"{looks[-1]} in the queue, held and done"

    wait_until(why_not, [worker.child], what="a worker that has read enough", timeout=30)


@BOTH
def test_unacknowledged_messages_can_be_given_back_by_any_worker(setup: Setup, bulk: bool):  # noqa: FBT001
    """What a killed worker held is written down as kombu writes it, and comes back whole."""
    worker = setup.worker("-c", "1", conf={"batch_bulk": bulk})
    results = [setup.slow.delay(n) for n in range(240)]
    results[5].get(timeout=30)
    rest_from_reading(setup, worker, len(results))
    os.kill(worker.pid, signal.SIGKILL)
    worker.child.wait(60)
    kept, index = held(setup)
    with Connection(setup.url) as connection:
        channel = connection.default_channel
        for tag in index:
            channel.qos.restore_by_tag(tag)
    setup.worker("-c", "1")

    assert kept
    assert sorted(kept) == sorted(index)
    assert {("", "celery")} == {(exchange, key) for _, exchange, key in kept.values()}
    assert {
        tag for tag, (message, _, _) in kept.items() if message["properties"]["delivery_tag"] == tag
    } == set(kept)
    assert list(range(240)) == [result.get(timeout=60) for result in results]


@BOTH
def test_nothing_is_left_unacknowledged(setup: Setup, bulk: bool):  # noqa: FBT001
    """When all is done and the worker has stopped, Redis holds no message any more."""
    worker = setup.worker("-c", "1", conf={"batch_bulk": bulk})
    results = [setup.double.delay(n) for n in range(100)]
    answers = [result.get(timeout=30) for result in results]
    worker.stop()

    assert [2 * n for n in range(100)] == answers
    assert ({}, []) == held(setup)


@BOTH
def test_messages_come_in_the_order_of_priorities_and_queues(setup: Setup, bulk: bool):  # noqa: FBT001
    """Urgent ones come first if nobody has a share, each priority in the order of its sending."""
    for n in range(40):
        setup.double.apply_async((n,), priority=(9, 6, 3, 0)[n % 4])
    setup.worker("-c", "1", conf={"batch_bulk": bulk, "batch_low_priority_share": 0})
    last = setup.double.apply_async((40,), priority=9)
    last.get(timeout=30)
    order = [n for fact in setup.recall("double") for n in fact["items"]]
    urgent = sorted(range(40), key=lambda n: (-(n % 4), n))

    assert [*urgent, 40] == order


@BOTH
def test_key_prefix_is_kept(setup: Setup, bulk: bool):  # noqa: FBT001
    """With a global key prefix the broker's keys all carry it."""
    options = {"global_keyprefix": "shop-"}
    setup.app.conf.broker_transport_options = options
    worker = setup.worker("-c", "1", conf={"batch_bulk": bulk, "broker_transport_options": options})
    results = [setup.double.delay(n) for n in range(50)]
    answers = [result.get(timeout=30) for result in results]
    worker.stop()
    client = setup.memory()
    kept = client.hlen("shop-unacked"), client.zcard("shop-unacked_index"), client.exists("celery")
    client.close()

    assert [2 * n for n in range(50)] == answers
    assert (0, 0, 0) == kept


@BOTH
def test_stored_results_are_celery_s(setup: Setup, bulk: bool):  # noqa: FBT001
    """Key, fields and expiry of a stored result do not depend on the path."""
    setup.worker("-c", "1", conf={"batch_bulk": bulk, "result_extended": True})
    good, bad = setup.odd.delay("good"), setup.odd.delay("bad")
    good.get(timeout=30)
    bad.get(timeout=30, propagate=False)
    client = setup.memory()
    stored = [json.loads(client.get(f"celery-task-meta-{each.id}")) for each in (good, bad)]
    expiries = [client.ttl(f"celery-task-meta-{each.id}") for each in (good, bad)]
    client.close()
    names = {"args", "children", "date_done", "kwargs", "name", "queue", "retries", "worker"}

    assert ["SUCCESS", "FAILURE"] == [meta["status"] for meta in stored]
    assert ["GOOD", "ValueError"] == [stored[0]["result"], stored[1]["result"]["exc_type"]]
    assert all(names <= set(meta) for meta in stored)
    assert all(590 <= seconds <= 600 for seconds in expiries)


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_plain_items_pass_their_tracers_by(setup: Setup, pool: str):
    """In a worker as users start it, a batch of plain items runs inside one tracer."""
    setup.worker("-c", "1", "-P", pool)
    results = [setup.tracers.delay(n) for n in range(8)]
    alone = [each.get(timeout=30) for each in results]  # before the others come, in their batch
    linked = [setup.tracers.apply_async((n,), link=setup.plain.si(1)) for n in range(8)]
    nested = [each.get(timeout=30) for each in linked]

    assert {1} == {tracers for _, tracers in alone}
    assert max(size for size, _ in alone) > 1
    assert all(size == tracers for size, tracers in nested)


def test_a_worker_says_which_fast_paths_it_takes(each_setup: Setup):
    """One line at a worker's start says which are on, and why others are not."""
    worker = each_setup.worker("-c", "1", conf={"batch_bulk": False, "batch_overlap": False})
    read = "amqp_frames" if each_setup.url.startswith("amqp") else "fetch"
    line = (
        f"intake on; {read}, acknowledge off (batch_bulk is False);"
        " write_ahead, overlap off (batch_overlap is False); trace off (store is off);"
        " store off (batch_bulk is False); notify off (store is off)"
    )

    assert [line] == [
        said.partition("Fast paths: ")[2]
        for said in worker.log.splitlines()
        if "Fast paths: " in said
    ]
