"""Pools that change: processes replaced after some batches, more and fewer of them."""

from __future__ import annotations

import pytest

from tests.services.place import Place, eventually


@pytest.mark.alike_on_brokers
def test_processes_are_replaced_after_so_many_batches(place: Place):
    """``max_tasks_per_child`` counts batches; nothing is lost when a process is replaced."""
    queue = place.unique("recycled")
    with place.another("-c", "1", "--max-tasks-per-child", "2", queue=queue):
        answers = [place.who.apply_async((n,), queue=queue).get(timeout=30) for n in range(5)]

    assert list(range(5)) == [answer[0] for answer in answers]
    assert 3 == len({answer[1] for answer in answers})


def test_the_pool_can_grow_and_shrink(place: Place):
    """After ``pool_grow`` two batches run at once; after ``pool_shrink`` the worker goes on."""
    options = {"reply": True, "timeout": 10, "limit": 1, "destination": [place.worker.name]}
    place.app.control.pool_grow(1, **options)
    gates = [_hold(place) for _ in range(2)]
    pids = {fact["pid"] for fact in place.recall("hold")}
    for gate in gates:
        place.open_gate(gate)

    def shrunk() -> bool:  # Celery refuses while every process is busy
        (reply,) = place.app.control.pool_shrink(1, **options)
        return "ok" in reply[place.worker.name]

    eventually(shrunk, "one process less")
    eventually(lambda: len(place.worker.stats()["pool"]["processes"]) == 1, "one process")

    assert 2 == len(pids)
    assert [2 * n for n in range(20)] == place.get([place.double.delay(n) for n in range(20)])


def test_the_pool_scales_by_itself(place: Place):
    """With ``--autoscale`` a second process comes for a second batch."""
    queue = place.unique("scaled")
    with place.another("--autoscale", "2,1", queue=queue):
        gates = [_hold(place, queue=queue) for _ in range(2)]
        pids = {fact["pid"] for fact in place.recall("hold")}
        for gate in gates:
            place.open_gate(gate)
        answer = place.double.apply_async((4,), queue=queue).get(timeout=30)

    assert 2 == len(pids)
    assert 8 == answer


def _hold(place: Place, **options) -> str:
    gate = place.unique("gate")
    place.hold.apply_async((gate,), **options)
    place.wait_at(gate)
    return gate


@pytest.mark.alike_on_brokers
def test_shared_tasks_are_batched(place: Place):
    """A ``shared_task`` with our base class is a batch task of whatever app the worker has."""
    answers = place.get([place.shared.delay(n) for n in range(8)])

    assert [[n, "features"] for n in range(8)] == answers
    assert len(place.batches("shared")) < 8
    assert eventually(lambda: "f.shared" in place.worker.status(), "the task's lane")
