"""Paused tasks and drained workers take no more, give back what waits, and lose nothing."""

from __future__ import annotations

from typing import Any

from celery_batch.serve.readiness import warm_workers
from tests.services.helm import LONG, Helm
from tests.services.shop import Worker

GATED = "steered.gated"


def keep_busy(helm: Helm, worker: Worker, gate: str) -> Any:
    """Have a batch run until its gate is opened, and three more requests wait behind it."""
    running = helm.shop.gated.delay(gate)
    helm.until(worker, "a running batch", lambda: worker.status()[GATED]["running"])
    waiting = helm.shop.gated.delay_many([f"{gate}-{n}" for n in range(3)])
    helm.until(worker, "requests that wait", lambda: worker.status()[GATED]["waiting"] == 3)
    return running, waiting


def ran(helm: Helm) -> list[str]:
    """Return what the gated model has seen."""
    return [item for fact in helm.shop.recall("gated") for item in fact["items"]]


def test_what_waits_goes_to_other_workers(helm: Helm, worker: Worker):
    """What runs ends here, what waits is run elsewhere, other tasks go on, and all comes back."""
    running, waiting = keep_busy(helm, worker, "pause")
    told = helm.done(worker, "batch_pause", task=GATED)
    later = helm.shop.gated.delay("pause-3")
    in_broker = helm.depth("gated")
    helm.open("pause")
    running.get(timeout=LONG)
    sizes = helm.shop.sizes.delay(1).get(timeout=LONG)
    ran_here = [item for item in ran(helm) if item.startswith("pause")]
    status = worker.status()
    helm.open("pause-0", "pause-3")
    other = helm.worker()
    answers = [result.get(timeout=LONG) for result in [*waiting, later]]
    other.stop()
    resumed = helm.done(worker, "batch_resume", words=[GATED])
    helm.open("pause-4")

    assert {GATED: {"state": "paused", "waiting": 0, "running": 1}} == told
    assert 4 == in_broker
    assert 1 == sizes
    assert ["pause"] == ran_here
    assert [True, False] == [status[name]["paused"] for name in (GATED, "steered.sizes")]
    assert ["pause-0", "pause-1", "pause-2", "pause-3"] == answers
    assert "open" == resumed[GATED]["state"]
    assert "pause-4" == helm.shop.gated.delay("pause-4").get(timeout=LONG)


def test_drained_worker_takes_nothing_and_stays(helm: Helm, worker: Worker):
    """No queue is consumed, nobody counts on the worker, and it can be taken up again."""
    running, waiting = keep_busy(helm, worker, "drain")
    told = helm.done(worker, "batch_drain")
    plain = helm.shop.plain.delay(1)
    status, ready = worker.status(), warm_workers(helm.shop.app, GATED)
    queues = helm.shop.app.control.inspect([worker.name], timeout=LONG, limit=1).active_queues()
    refused = helm.order(worker, "batch_resume", task=GATED)
    helm.open("drain", "drain-0")
    running.get(timeout=LONG)
    kept = [helm.depth("gated"), helm.depth("ordinary")]
    helm.done(worker, "batch_resume")

    assert {"state": "drained", "waiting": 0, "running": 1} == told[GATED]
    assert all(task["drained"] and task["paused"] for task in status.values())
    assert set() == ready
    assert {worker.name: []} == queues
    assert "batch_resume without a task" in refused["error"]
    assert [3, 1] == kept
    assert ["drain-0", "drain-1", "drain-2"] == [each.get(timeout=LONG) for each in waiting]
    assert 2 == plain.get(timeout=LONG)
    assert {worker.name} == warm_workers(helm.shop.app, GATED)
    assert not any(task["drained"] or task["paused"] for task in worker.status().values())


def test_queue_that_brings_other_tasks_too(helm: Helm, worker: Worker):
    """Redis: what is paused is kept within bounds, and expires; RabbitMQ: they go together."""
    left, right = "steered.left", "steered.right"
    reply = helm.order(worker, "batch_pause", task=left)
    if helm.shop.url.startswith("amqp"):
        assert "queue both brings steered.right, too" in reply["error"]
        assert not worker.status()[left]["paused"]
        helm.done(worker, "batch_pause", words=[left, right])
        halves = [helm.shop.left.delay(1), helm.shop.right.delay(2)]
        half = helm.order(worker, "batch_resume", task=right)
        waiting = helm.depth("both")
        helm.done(worker, "batch_resume", words=[left, right])

        assert "queue both brings steered.left, too" in half["error"]
        assert 2 == waiting
        assert [1, 2] == [half.get(timeout=LONG) for half in halves]
        return
    expiring = helm.shop.left.apply_async((0,), expires=0.5)
    lefts = helm.shop.left.delay_many([1, 2])
    rights = [helm.shop.right.delay(n).get(timeout=LONG) for n in range(3)]
    helm.until(worker, "an end in time", lambda: expiring.state == "REVOKED")
    status = worker.status()[left]
    helm.done(worker, "batch_resume", task=left)

    assert [0, 1, 2] == rights
    assert [True, 2, 0] == [status[name] for name in ("paused", "waiting", "requests")]
    assert [1, 2] == [result.get(timeout=LONG) for result in lefts]


def test_pause_outlasts_a_lost_connection(helm: Helm, worker: Worker):
    """The task's queue is left alone after the worker has come back to its broker."""
    if helm.shop.url.startswith("amqp"):
        return  # a connection cannot be cut from here
    helm.done(worker, "batch_pause", task="steered.sizes")
    with helm.shop.memory() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    helm.reconnect()
    helm.until(worker, "a new connection", lambda: "Connection to broker lost" in worker.log)
    waiting = helm.shop.sizes.delay(1)
    plain = helm.shop.plain.delay(1).get(timeout=LONG)
    depth, status = helm.depth("sizes"), worker.status()["steered.sizes"]
    helm.done(worker, "batch_resume", task="steered.sizes")

    assert 2 == plain
    assert [1, True] == [depth, status["paused"]]
    assert 1 == waiting.get(timeout=LONG)
