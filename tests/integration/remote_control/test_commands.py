"""Commands to a running worker: options of batches, pause, drain; on either broker."""

from __future__ import annotations

import os
from typing import Any

import pytest
from celery.app.control import Control

from celery_batch.cli.deployment import warm_workers
from tests.services.forked import run
from tests.services.remote_control import LONG, RemoteControl
from tests.services.setup import CELERY, Worker

SIZES, GATED = "controlled.sizes", "controlled.gated"


def test_next_batch_has_the_new_size(control: RemoteControl, worker: Worker):
    """Batches, the parts of chunks and the prefetch follow the new size, and back."""
    prefetch = worker.stats()["prefetch_count"]
    reply = control.run(
        worker, "batch_config", task=SIZES, max_batch_size=3, max_wait=50, linger=40
    )
    small = [result.get(timeout=LONG) for result in control.setup.sizes.delay_many(list(range(12)))]
    cut = control.setup.sizes.delay_rows(list(range(9))).get(timeout=LONG)
    status = worker.status()[SIZES]
    less = worker.stats()["prefetch_count"]
    control.run(worker, "batch_config", task=SIZES, max_batch_size=16)
    large = [result.get(timeout=LONG) for result in control.setup.sizes.delay_many(list(range(16)))]
    more = worker.stats()["prefetch_count"]
    control.run(worker, "batch_config", words=[SIZES, "default"])

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
        (["controlled.size"], "; did you mean controlled.sizes?"),
        (
            [SIZES, "max_batch_sise=3"],
            "; did you mean max_batch_size?",
        ),
        ([SIZES, "max_batch_size=0"], "must be a whole number of at least 1, got 0"),
        ([SIZES, "max_batch_size=4096"], "controlled.sizes.max_batch_size: at most"),
        ([SIZES, "max_wait=soon"], "must be seconds as a number from 0 up, got 'soon'"),
        ([SIZES, "max_wait=nan"], "must be seconds as a number from 0 up, got nan"),
        ([SIZES, "linger=0.1", "max_wait", "=", "3"], "not understood; write: batch_config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_command_changes_nothing(
    control: RemoteControl, worker: Worker, words: list[str], message: str
):
    """The reply names what is invalid and what would be valid."""
    before = policies(worker)
    reply = control.send(worker, "batch_config", words=words)

    assert ["error"] == list(reply)
    assert message in reply["error"]
    assert before == policies(worker)


@pytest.mark.parametrize(
    ("linger", "holds", "note"),
    [
        (None, 0.002, "linger: none is set, so it is 0.002, or max_wait where that is shorter"),
        (0.3, 0.3, ""),
        (0.6, 0.5, "linger: 0.6 is set, but no request waits longer than max_wait"),
    ],
)
def test_set_and_effective_linger_are_shown(
    control: RemoteControl, worker: Worker, linger: float | None, holds: float, note: str
):
    """All commands show the effective number; a note says where another one was set."""
    reply = control.run(worker, "batch_config", task=SIZES, max_wait=0.5, linger=linger)
    status = worker.status()[SIZES]
    control.run(worker, "batch_config", words=[SIZES, "default"])

    assert holds == reply["linger"] == status["linger"]
    assert note in " ".join(reply.get("notes", []))
    assert bool(note) == ("notes" in reply)


def policies(worker: Worker) -> dict[str, list[Any]]:
    """Return the options of each task."""
    names = ("max_batch_size", "max_wait", "linger", "task_says")
    return {task: [state[name] for name in names] for task, state in worker.status().items()}


def test_command_from_a_shell(control: RemoteControl, worker: Worker):
    """Words of the command line are names and values; the reply is readable."""
    done = run(
        [
            CELERY,
            "-A",
            "tests.apps.controlled",
            "control",
            "--timeout=60",
            f"--destination={worker.name}",
            "batch_config",
            SIZES,
            "max_wait=20",
            "linger=none",
        ],
        env=os.environ | control.setup.environment,
    )
    shown = control.run(worker, "batch_config", task=SIZES)
    control.run(worker, "batch_config", task=SIZES, max_wait="default", linger="default")

    assert 0 == done.returncode, done.stderr
    assert f"{worker.name}: OK" in done.stdout
    assert "if you mean milliseconds, write 0.02" in done.stdout
    assert [20, 0.002] == [shown["max_wait"], shown["linger"]]
    assert {"max_wait": 1.0, "linger": 0.2} == shown["task_says"]
    assert {} == control.run(worker, "batch_config", task=SIZES)["task_says"]


def keep_busy(control: RemoteControl, worker: Worker, gate: str) -> Any:
    """Have a batch run until its gate is opened, and three more requests wait behind it."""
    # The worker hears of the end of another test's last batch after the caller.
    control.until(worker, "no batch", lambda: not worker.status()[GATED]["running"])
    running = control.setup.gated.delay(gate)
    control.until(worker, "a running batch", lambda: worker.status()[GATED]["running"])
    waiting = control.setup.gated.delay_many([f"{gate}-{n}" for n in range(3)])
    control.until(worker, "requests that wait", lambda: worker.status()[GATED]["waiting"] == 3)
    return running, waiting


def ran(control: RemoteControl) -> list[str]:
    """Return the items of the gated model."""
    return [item for fact in control.setup.recall("gated") for item in fact["items"]]


def test_waiting_requests_go_to_other_workers(control: RemoteControl, worker: Worker):
    """Running batches end here, waiting requests run elsewhere, and the task can be resumed."""
    running, waiting = keep_busy(control, worker, "pause")
    reply = control.run(worker, "batch_pause", task=GATED)
    later = control.setup.gated.delay("pause-3")
    control.until(worker, "all in the broker", lambda: control.depth("gated") == 4)
    control.open("pause")
    running.get(timeout=LONG)
    sizes = control.setup.sizes.delay(1).get(timeout=LONG)
    ran_here = [item for item in ran(control) if item.startswith("pause")]
    status = worker.status()
    control.open("pause-0", "pause-3")
    other = control.worker()
    answers = [result.get(timeout=LONG) for result in [*waiting, later]]
    other.stop()
    resumed = control.run(worker, "batch_resume", words=[GATED])
    control.open("pause-4")

    assert {GATED: {"state": "paused", "waiting": 0, "running": 1}} == reply
    assert 1 == sizes
    assert ["pause"] == ran_here
    assert [True, False] == [status[name]["paused"] for name in (GATED, "controlled.sizes")]
    assert ["pause-0", "pause-1", "pause-2", "pause-3"] == answers
    assert "open" == resumed[GATED]["state"]
    assert "pause-4" == control.setup.gated.delay("pause-4").get(timeout=LONG)


def test_drained_worker_takes_no_messages_and_stays_up(control: RemoteControl, worker: Worker):
    """No queue is consumed, the worker is not ready, and it can be resumed."""
    running, waiting = keep_busy(control, worker, "drain")
    reply = control.run(worker, "batch_drain")
    plain = control.setup.plain.delay(1)
    status, ready = worker.status(), warm_workers(control.setup.app, GATED)
    asked = Control(control.setup.app)  # with a queue of its own for replies
    queues = asked.inspect([worker.name], timeout=LONG, limit=1).active_queues()
    refused = control.send(worker, "batch_resume", task=GATED)
    control.open("drain", "drain-0")
    running.get(timeout=LONG)
    control.until(worker, "all in the broker", lambda: control.depth("gated") == 3)
    control.until(worker, "all in the broker", lambda: control.depth("ordinary") == 1)
    control.run(worker, "batch_resume")
    control.until(
        worker, "readiness", lambda: warm_workers(control.setup.app, GATED) == {worker.name}
    )

    assert {"state": "drained", "waiting": 0, "running": 1} == reply[GATED]
    assert all(task["drained"] and task["paused"] for task in status.values())
    assert set() == ready
    assert {worker.name: []} == queues
    assert "batch_resume without a task" in refused["error"]
    assert ["drain-0", "drain-1", "drain-2"] == [each.get(timeout=LONG) for each in waiting]
    assert 2 == plain.get(timeout=LONG)
    assert not any(task["drained"] or task["paused"] for task in worker.status().values())


def test_queue_with_other_tasks(control: RemoteControl, worker: Worker):
    """Redis: paused requests are kept, and expire; RabbitMQ: the tasks are paused together."""
    left, right = "controlled.left", "controlled.right"
    reply = control.send(worker, "batch_pause", task=left)
    if control.setup.url.startswith("amqp"):
        assert "queue both also has messages of controlled.right" in reply["error"]
        assert not worker.status()[left]["paused"]
        control.run(worker, "batch_pause", words=[left, right])
        halves = [control.setup.left.delay(1), control.setup.right.delay(2)]
        half = control.send(worker, "batch_resume", task=right)
        control.until(worker, "both in the broker", lambda: control.depth("both") == 2)
        control.run(worker, "batch_resume", words=[left, right])

        assert "queue both also has messages of controlled.left" in half["error"]
        assert [1, 2] == [half.get(timeout=LONG) for half in halves]
        return
    expiring = control.setup.left.apply_async((0,), expires=0.5)
    lefts = control.setup.left.delay_many([1, 2])
    rights = [control.setup.right.delay(n).get(timeout=LONG) for n in range(3)]
    control.until(worker, "an end in time", lambda: expiring.state == "REVOKED")
    status = worker.status()[left]
    age = worker.ask("batch_stats")["tasks"][left]["oldest_age"]
    control.run(worker, "batch_resume", task=left)

    assert [0, 1, 2] == rights
    assert 0 < age
    assert [True, 2, 0] == [status[name] for name in ("paused", "waiting", "requests")]
    assert [1, 2] == [result.get(timeout=LONG) for result in lefts]


def test_changes_outlast_a_lost_connection(control: RemoteControl, worker: Worker):
    """Pause, drain and options stay after the worker has connected again."""
    if control.setup.url.startswith("amqp"):
        return  # a connection cannot be cut from here
    control.run(worker, "batch_pause", task=SIZES)
    control.run(worker, "batch_config", task=SIZES, max_batch_size=3)
    cut_connection(control, worker, times=1)
    paused = worker.status()[SIZES]
    waiting = control.setup.sizes.delay(1)
    plain = control.setup.plain.delay(1).get(timeout=LONG)
    control.run(worker, "batch_drain")
    cut_connection(control, worker, times=2)
    later = control.setup.plain.delay(2)
    drained = worker.status()[SIZES]
    depths = [control.depth("sizes"), control.depth("ordinary")]
    control.run(worker, "batch_resume")
    control.run(worker, "batch_config", words=[SIZES, "default"])

    assert 2 == plain
    assert [True, 3] == [paused["paused"], paused["max_batch_size"]]
    assert drained["drained"]
    assert [1, 1] == depths
    assert [1, 3] == [waiting.get(timeout=LONG), later.get(timeout=LONG)]


def cut_connection(control: RemoteControl, worker: Worker, times: int) -> None:
    """Have the worker lose its connection, and return when it has another."""
    with control.setup.memory() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    control.reconnect()
    lost = "Connection to broker lost"
    control.until(worker, "a lost connection", lambda: worker.log.count(lost) >= times)
    control.until(worker, "a new connection", lambda: not worker.why_not_ready())
