"""Pools that change: processes replaced after some batches, more and fewer of them."""

from __future__ import annotations

import pytest

from tests.services.shared_setup import SharedSetup, eventually


@pytest.mark.alike_on_brokers
def test_processes_are_replaced_after_so_many_batches(shared: SharedSetup):
    """``max_tasks_per_child`` counts batches; nothing is lost when a process is replaced."""
    queue = shared.unique("recycled")
    with shared.another("-c", "1", "--max-tasks-per-child", "2", queue=queue):
        answers = [shared.who.apply_async((n,), queue=queue).get(timeout=30) for n in range(5)]

    assert list(range(5)) == [answer[0] for answer in answers]
    assert 3 == len({answer[1] for answer in answers})


def test_the_pool_can_grow_and_shrink(shared: SharedSetup):
    """After ``pool_grow`` two batches run at once; after ``pool_shrink`` the worker goes on."""
    options = {"reply": True, "timeout": 60, "limit": 1, "destination": [shared.worker.name]}
    shared.app.control.pool_grow(1, **options)
    gates = [_hold(shared) for _ in range(2)]
    pids = {fact["pid"] for fact in shared.recall("hold")}
    for gate in gates:
        shared.open_gate(gate)

    def shrunk() -> bool:  # Celery refuses while every process is busy
        (reply,) = shared.app.control.pool_shrink(1, **options)
        return "ok" in reply[shared.worker.name]

    eventually(shrunk, "one process less")
    eventually(lambda: len(shared.worker.stats()["pool"]["processes"]) == 1, "one process")

    assert 2 == len(pids)
    assert [2 * n for n in range(20)] == shared.get([shared.double.delay(n) for n in range(20)])


def test_the_pool_scales_by_itself(shared: SharedSetup):
    """With ``--autoscale`` a second process comes for a second batch."""
    queue = shared.unique("scaled")
    with shared.another("--autoscale", "2,1", queue=queue):
        gates = [_hold(shared, queue=queue) for _ in range(2)]
        pids = {fact["pid"] for fact in shared.recall("hold")}
        for gate in gates:
            shared.open_gate(gate)
        answer = shared.double.apply_async((4,), queue=queue).get(timeout=30)

    assert 2 == len(pids)
    assert 8 == answer


def _hold(shared: SharedSetup, **options) -> str:
    gate = shared.unique("gate")
    shared.hold.apply_async((gate,), **options)
    shared.wait_at(gate)
    return gate


@pytest.mark.alike_on_brokers
def test_shared_tasks_are_batched(shared: SharedSetup):
    """A ``shared_task`` with our base class is a batch task of whatever app the worker has."""
    answers = shared.get([shared.shared.delay(n) for n in range(8)])

    assert [[n, "features"] for n in range(8)] == answers
    assert len(shared.batches("shared")) < 8
    assert eventually(lambda: "f.shared" in shared.worker.status(), "the task's lane")
