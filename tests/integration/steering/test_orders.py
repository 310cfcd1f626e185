"""Orders to a running worker: when batches leave, what is taken no more; on either broker."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from celery_batch.serve.readiness import warm_workers
from tests.conftest import ROOT
from tests.services.helm import LONG, Helm
from tests.services.shop import CELERY, Worker

SIZES, GATED = "steered.sizes", "steered.gated"


def test_next_batch_has_the_new_size(helm: Helm, worker: Worker):
    """Batches, what chunks are cut into and the prefetch go by the new size, and back."""
    prefetch = worker.stats()["prefetch_count"]
    reply = helm.done(worker, "batch_config", task=SIZES, max_batch_size=3, max_wait=50, linger=40)
    small = [result.get(timeout=LONG) for result in helm.shop.sizes.delay_many(list(range(12)))]
    cut = helm.shop.sizes.delay_rows(list(range(9))).get(timeout=LONG)
    status = worker.status()[SIZES]
    less = worker.stats()["prefetch_count"]
    helm.done(worker, "batch_config", task=SIZES, max_batch_size=16)
    large = [result.get(timeout=LONG) for result in helm.shop.sizes.delay_many(list(range(16)))]
    more = worker.stats()["prefetch_count"]
    helm.done(worker, "batch_config", words=[SIZES, "default"])

    assert [3, 50, 40] == [reply[name] for name in ("max_batch_size", "max_wait", "linger")]
    assert {"max_batch_size": 8, "max_wait": 1.0, "linger": 0.2} == reply["task_says"]
    assert reply["task_says"] == status["task_says"]
    assert [3, 50] == [status["max_batch_size"], status["max_wait"]]
    assert [3] * 12 == small
    assert [3] * 9 == cut
    assert [16] * 16 == large
    assert [prefetch - 3 * 5, prefetch + 3 * 8] == [less, more]
    assert prefetch == worker.stats()["prefetch_count"]
    assert {} == worker.status()[SIZES]["task_says"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no task is named; write: batch_config <task>"),
        (["steered.size"], "; did you mean steered.sizes?"),
        (
            [SIZES, "max_batch_sise=3"],
            "; did you mean max_batch_size?",
        ),
        ([SIZES, "max_batch_size=0"], "must be a whole number of at least 1, got 0"),
        ([SIZES, "max_batch_size=4096"], "steered.sizes.max_batch_size: at most"),
        ([SIZES, "max_wait=soon"], "must be seconds as a number from 0 up, got 'soon'"),
        ([SIZES, "max_wait=nan"], "must be seconds as a number from 0 up, got nan"),
        ([SIZES, "linger=0.1", "max_wait", "=", "3"], "not understood; write: batch_config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_changes_nothing(helm: Helm, worker: Worker, words: list[str], message: str):
    """The reply names what is wrong and what would be right."""
    before = policies(worker)
    reply = helm.order(worker, "batch_config", words=words)

    assert ["error"] == list(reply)
    assert message in reply["error"]
    assert before == policies(worker)


@pytest.mark.parametrize(
    ("linger", "holds", "note"),
    [
        (None, 0.002, "linger: none is set, so it is 0.002, or max_wait where that is shorter"),
        (0.3, 0.3, ""),
        (0.6, 0.5, "linger: 0.6 is set, but nobody waits longer than max_wait"),
    ],
)
def test_what_is_set_and_what_holds_is_told(
    helm: Helm, worker: Worker, linger: float | None, holds: float, note: str
):
    """The number is the same wherever it is asked for; a note says where another one was set."""
    reply = helm.done(worker, "batch_config", task=SIZES, max_wait=0.5, linger=linger)
    status = worker.status()[SIZES]
    helm.done(worker, "batch_config", words=[SIZES, "default"])

    assert holds == reply["linger"] == status["linger"]
    assert note in " ".join(reply.get("notes", []))
    assert bool(note) == ("notes" in reply)


def policies(worker: Worker) -> dict[str, list[Any]]:
    """Return when the batches of each task leave."""
    names = ("max_batch_size", "max_wait", "linger", "task_says")
    return {task: [said[name] for name in names] for task, said in worker.status().items()}


def test_order_is_given_from_a_shell(helm: Helm, worker: Worker):
    """Words of the command line are names and values; the reply can be read."""
    done = subprocess.run(
        [
            *(CELERY, "-A", "tests.services.steered", "control", "--timeout=20"),
            *(f"--destination={worker.name}", "batch_config", SIZES, "max_wait=20", "linger=none"),
        ],
        cwd=ROOT,
        env={**os.environ, **helm.shop.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    shown = helm.done(worker, "batch_config", task=SIZES)
    helm.done(worker, "batch_config", task=SIZES, max_wait="default", linger="default")

    assert 0 == done.returncode, done.stderr
    assert f"{worker.name}: OK" in done.stdout
    assert "if you mean milliseconds, write 0.02" in done.stdout
    assert [20, 0.002] == [shown["max_wait"], shown["linger"]]
    assert {"max_wait": 1.0, "linger": 0.2} == shown["task_says"]
    assert {} == helm.done(worker, "batch_config", task=SIZES)["task_says"]


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
    helm.until(worker, "all in the broker", lambda: helm.depth("gated") == 4)
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
    helm.until(worker, "all in the broker", lambda: helm.depth("gated") == 3)
    helm.until(worker, "all in the broker", lambda: helm.depth("ordinary") == 1)
    helm.done(worker, "batch_resume")
    helm.until(worker, "readiness", lambda: warm_workers(helm.shop.app, GATED) == {worker.name})

    assert {"state": "drained", "waiting": 0, "running": 1} == told[GATED]
    assert all(task["drained"] and task["paused"] for task in status.values())
    assert set() == ready
    assert {worker.name: []} == queues
    assert "batch_resume without a task" in refused["error"]
    assert ["drain-0", "drain-1", "drain-2"] == [each.get(timeout=LONG) for each in waiting]
    assert 2 == plain.get(timeout=LONG)
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
        helm.until(worker, "both in the broker", lambda: helm.depth("both") == 2)
        helm.done(worker, "batch_resume", words=[left, right])

        assert "queue both brings steered.left, too" in half["error"]
        assert [1, 2] == [half.get(timeout=LONG) for half in halves]
        return
    expiring = helm.shop.left.apply_async((0,), expires=0.5)
    lefts = helm.shop.left.delay_many([1, 2])
    rights = [helm.shop.right.delay(n).get(timeout=LONG) for n in range(3)]
    helm.until(worker, "an end in time", lambda: expiring.state == "REVOKED")
    status = worker.status()[left]
    age = worker.ask("batch_stats")["tasks"][left]["oldest_age"]
    helm.done(worker, "batch_resume", task=left)

    assert [0, 1, 2] == rights
    assert 0 < age
    assert [True, 2, 0] == [status[name] for name in ("paused", "waiting", "requests")]
    assert [1, 2] == [result.get(timeout=LONG) for result in lefts]


def test_orders_outlast_a_lost_connection(helm: Helm, worker: Worker):
    """What is paused, and what is drained, stays so after the worker has come back."""
    if helm.shop.url.startswith("amqp"):
        return  # a connection cannot be cut from here
    helm.done(worker, "batch_pause", task=SIZES)
    helm.done(worker, "batch_config", task=SIZES, max_batch_size=3)
    cut_connection(helm, worker, times=1)
    paused = worker.status()[SIZES]
    waiting = helm.shop.sizes.delay(1)
    plain = helm.shop.plain.delay(1).get(timeout=LONG)
    helm.done(worker, "batch_drain")
    cut_connection(helm, worker, times=2)
    later = helm.shop.plain.delay(2)
    drained = worker.status()[SIZES]
    depths = [helm.depth("sizes"), helm.depth("ordinary")]
    helm.done(worker, "batch_resume")
    helm.done(worker, "batch_config", words=[SIZES, "default"])

    assert 2 == plain
    assert [True, 3] == [paused["paused"], paused["max_batch_size"]]
    assert drained["drained"]
    assert [1, 1] == depths
    assert [1, 3] == [waiting.get(timeout=LONG), later.get(timeout=LONG)]


def cut_connection(helm: Helm, worker: Worker, times: int) -> None:
    """Have the worker lose its connection, and return when it has another."""
    with helm.shop.memory() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    helm.reconnect()
    lost = "Connection to broker lost"
    helm.until(worker, "a lost connection", lambda: worker.log.count(lost) >= times)
    helm.until(worker, "a new connection", lambda: not worker.why_not_ready())
