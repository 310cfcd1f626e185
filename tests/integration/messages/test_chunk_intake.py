"""A worker reads as many rows as it can use soon, in however many messages they come."""

from __future__ import annotations

from celery_batch.processes.managed_process import wait_until
from tests.conftest import Setup

#: Rows of one call of ``shop.nap``; one batch of so many is running, ready, and gathering.
SIZE, PLACES = 4, 3


def test_chunks_are_left_for_other_workers(setup: Setup):
    """Chunks of a batch's size take a place each, from the first message on."""
    results = [setup.nap.delay_rows(range(SIZE)) for _ in range(30)]
    worker = setup.worker("-c", "1", TESTS_NAP_SECONDS="1.5")
    wait_until(
        lambda: "" if len(setup.recall("nap")) >= 2 else "still at the first batch",
        [worker.child],
        what="a worker in full swing",
        timeout=30,
    )
    with setup.memory() as client:
        held = client.hlen("unacked")
    worker.stop()
    setup.worker("-c", "1", TESTS_NAP_SECONDS="0.01")

    assert 1 <= held <= PLACES + 1  # one may be just done
    assert [list(range(SIZE))] * 30 == [result.get(timeout=30) for result in results]
    assert {SIZE} == {len(fact["items"]) for fact in setup.recall("nap")}
