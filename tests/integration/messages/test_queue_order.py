"""Queues are read in the order that kombu is told to read them in, in bulk or not."""

from __future__ import annotations

import pytest

from celery_batch.processes.managed_process import wait_until
from tests.conftest import Setup

QUEUES = ("b", "a", "c")


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "one by one"])
@pytest.mark.parametrize(
    ("strategy", "order"), [("priority", "bac"), ("sorted", "abc")], ids=["priority", "sorted"]
)
def test_queues_come_in_their_order(setup: Setup, strategy: str, order: str, bulk: bool):  # noqa: FBT001
    """A strategy that puts one queue before another empties that one first."""
    results = [
        setup.double.apply_async((f"{queue}{n}",), queue=queue)
        for n in range(5)
        for queue in reversed(QUEUES)
    ]
    options = {"queue_order_strategy": strategy}
    conf = {"batch_bulk": bulk, "broker_transport_options": options}
    setup.worker("-c", "1", "-Q", ",".join(QUEUES), conf=conf)
    for result in results:
        result.get(timeout=30)
    seen = [item for fact in setup.recall("double") for item in fact["items"]]

    assert [f"{queue}{n}" for queue in order for n in range(5)] == seen


def test_no_queue_starves_behind_a_long_one(setup: Setup):
    """By default queues take turns: a short one is empty long before a long one is."""
    long = [setup.slow.apply_async((n,), queue="a") for n in range(400)]
    short = [setup.double.apply_async((n,), queue=queue) for n in range(5) for queue in ("b", "c")]
    worker = setup.worker("-c", "1", "-Q", ",".join(QUEUES))
    for result in [*short, *long]:
        result.get(timeout=60)
    stored = lambda result: setup.app.backend.get_task_meta(result.id)["date_done"]  # noqa: E731
    last = max(map(stored, short))

    assert len([each for each in long if stored(each) < last]) < 200
    wait_until(
        lambda: str(setup.memory().hlen("unacked") or ""), [worker.child], what="", timeout=60
    )
