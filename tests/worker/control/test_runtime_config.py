"""Remote control commands: their words, their effect on task queues, delayed replies."""

from __future__ import annotations

import gc
import json
import os
import socket
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.control import Panel
from celery.worker.pidbox import Pidbox

from celery_batch import BatchTask, ConfigurationError
from celery_batch.batching.batch import Reason
from celery_batch.compat.celery import allow_delayed_replies
from celery_batch.config import OPTIONS, policy_of
from celery_batch.runtime import devices, registry
from celery_batch.telemetry.meter import Tally
from celery_batch.testing import EchoModel, ManualClock
from celery_batch.worker.control import commands, reload
from celery_batch.worker.control.pause import PauseControl
from celery_batch.worker.control.runtime_config import RuntimeConfig
from celery_batch.worker.dispatch.follow_up import BatchEnd, Unanswered
from celery_batch.worker.executor import loader
from tests.worker.doubles import Pool, Worker

OPERATOR = "operator"


class Recorder:
    """Records the commands that it gets."""

    DEFAULT = RuntimeConfig.DEFAULT

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def options(self, _name: str) -> tuple[str, ...]:
        """Return what can be changed where no cost is limited."""
        return tuple(OPTIONS)

    def configure(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Record a change of options."""
        self.calls.append((name, values))
        return {}

    def resume(self, names: list[str]) -> dict[str, Any]:
        """Record a resume."""
        self.calls.append((names,))
        return {}

    def reload(self, name: str, **how: Any) -> Future[Any]:
        """Record a reload."""
        self.calls.append((name, how))
        return Future()


def test_words_of_a_reload():
    """The task comes first; options may be words or values."""
    recorder = Recorder()
    commands.batch_reload(recorder, ["t", "in_place", "wait=60"])
    commands.batch_reload(recorder, task="t", in_place=True, wait=60)

    assert [("t", {"in_place": True, "wait": 60})] * 2 == recorder.calls


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("batch_status", {}),
        ("batch_stats", {}),
        ("batch_drain", {}),
        ("batch_config", {"words": ["t"]}),
    ],
)
def test_a_worker_without_batch_tasks_replies_with_an_error(command: str, arguments: Any):
    """Its consumer does not have our step."""
    state = SimpleNamespace(consumer=SimpleNamespace())

    assert {"error": "this worker had no batch task when it started"} == Panel.data[command](
        state, **arguments
    )


@pytest.fixture
def runtime_config(worker: Worker) -> RuntimeConfig:
    """The runtime settings of a worker."""
    served_tasks: Any = SimpleNamespace(refresh=lambda: None)
    return RuntimeConfig(worker, worker.scheduler, served_tasks)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_batch_cost": 5}, "trios.max_batch_cost: .* that are defined with a max_batch_cost$"),
        ({"sort_window": 5}, "trios.sort_window: .* tasks that are defined with a max_batch_cost$"),
        ({"shed": True}, "trios.shed: can be .* tasks that are defined with a target_latency$"),
        ({"dedupe": True}, "trios.dedupe: can be .* tasks that are defined with dedupe=True$"),
        ({"cache_ttl": 5}, "trios.cache_ttl: can be .* tasks that are defined with a cache_ttl$"),
        ({"batch_size": 5}, "did you mean max_batch_size[?]$"),
    ],
)
def test_options_that_a_task_does_not_have_are_named(
    runtime_config: RuntimeConfig, worker: Worker, values: dict[str, Any], message: str
):
    """With the option that its definition lacks."""
    worker.send("trios", "a")
    with pytest.raises(ConfigurationError, match=message):
        runtime_config.configure("trios", values)


def test_the_reuse_of_answers_can_be_changed(runtime_config: RuntimeConfig, worker: Worker):
    """Of a task that is defined with it, which an operator may turn off and on."""

    @worker.app.task(base=BatchTask, name="reusing", dedupe=True, cache_ttl=60)
    def reusing(x):
        return x

    queue = worker.scheduler.task_queue(reusing)
    off = runtime_config.configure("reusing", {"dedupe": False, "cache_ttl": None})
    policy = queue.policy
    runtime_config.configure("reusing", {"cache_ttl": 5, "dedupe": "default"})

    assert {"dedupe": True, "cache_ttl": 60} == off["task_says"]
    assert (False, None) == (policy.dedupe, policy.cache_ttl)
    assert (True, 5) == (queue.policy.dedupe, queue.policy.cache_ttl)
    for values in ({"dedupe": None}, {"cache_ttl": 0}, {"cache_ttl": "1h"}):
        with pytest.raises(ConfigurationError, match="must be"):
            runtime_config.configure("reusing", values)


def test_a_target_is_not_taken_from_a_task_that_sheds(app: Celery):
    """The error says what to write as well."""
    app.conf.task_always_eager = True

    @app.task(base=BatchTask, name="late", target_latency=1.0, shed=True)
    def late(x):
        return x

    with pytest.raises(ConfigurationError, match="write target_latency=none shed=false"):
        policy_of(late, {"target_latency": None})
    assert policy_of(late, {"target_latency": None, "shed": False}).target_latency is None


def test_paused_task_queue_keeps_new_requests_and_runs_retried_ones(worker: Worker, pool: Pool):
    """New requests do not leave; those of a failed batch run again."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    worker.send("pairs", "a", "b", "c")
    task_queue.pause(OPERATOR)
    worker.send("pairs", "d", "e")
    pool.sent[0].callback(BatchEnd([None, (0, None, 0.0)], unanswered=Unanswered.INTERRUPTED))

    assert [["a", "b"], ["a"]] == pool.batches
    assert 1 == task_queue.history.reasons[Reason.ALONE]
    assert 3 == task_queue.report(Tally())["waiting"]

    pool.finish()
    worker.scheduler.resume(task_queue, OPERATOR)

    assert [["a", "b"], ["a"], ["c", "d"]] == pool.batches
    assert 1 == task_queue.report(Tally())["waiting"]


def test_kept_requests_count_for_room_and_go_back_with_the_connection(worker: Worker):
    """A paused task queue reads no more than it would, and is empty after the connection."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    before = worker.scheduler.fetch_limits.usable(["pairs"], [0])[0]
    task_queue.pause(OPERATOR)
    calls = worker.send("pairs", "a", "b", "c")
    after = worker.scheduler.fetch_limits.usable(["pairs"], [0])[0]
    worker.scheduler.close(restarting=True)

    assert 3 == before - after
    assert [] == task_queue.take_set_aside()
    assert task_queue.is_paused
    assert not any(call.acknowledged for call in calls)


def test_kept_requests_wait_from_their_arrival(
    runtime_config: RuntimeConfig, worker: Worker, pool: Pool, clock: ManualClock
):
    """The age and the wait of paused requests include the pause, also after it has ended."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    before = worker.scheduler.report()["pairs"]["oldest_age"]
    (early,) = worker.send("pairs", "a")
    came = clock()
    task_queue.pause(OPERATOR)
    clock.advance(1.0)
    late = worker.send("pairs", "b", "c")
    clock.advance(4.0)
    report = runtime_config.report("pairs")
    ages = [worker.scheduler.report()["pairs"]["oldest_age"]]
    worker.scheduler.resume(task_queue, OPERATOR)
    clock.advance(1.0)
    ages.append(worker.scheduler.report()["pairs"]["oldest_age"])

    assert 0.0 == before
    assert (True, False) == (report["paused"], report["drained"])
    assert [5.0, 5.0] == ages  # of the first, and of the last, which still waits
    assert ["a", "b"] == pool.batches[0]
    assert [came, came + 1.0, came + 1.0] == [each.arrived for each in (early, *late)]


def test_request_does_not_wait_for_others_after_a_pause(
    worker: Worker, pool: Pool, clock: ManualClock
):
    """A batch whose wait is over leaves at once, though it is not full."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    task_queue.pause(OPERATOR)
    worker.send("pairs", "a")
    clock.advance(60.0)
    worker.scheduler.resume(task_queue, OPERATOR)

    assert [["a"]] == pool.batches
    assert 1 == task_queue.history.reasons[Reason.TIMEOUT]


def test_acknowledged_request_runs_while_paused(worker: Worker):
    """A request that was acknowledged before it ran again could not be given back."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["trios"])
    worker.send("trios", "a", "b")[0].acknowledge()
    task_queue.pause(OPERATOR)
    worker.scheduler.dispatch()

    assert task_queue.is_paused
    assert ["b"] == [request.id for request in task_queue.take_set_aside()]
    assert 1 == task_queue.report(Tally())["waiting"]


def test_task_queue_resumes_when_all_have_resumed_it(worker: Worker, pool: Pool):
    """A reload in place does not end a pause of the operator, and the reverse."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    task_queue.pause(OPERATOR)
    task_queue.pause("weights")
    worker.send("pairs", "a", "b")
    worker.scheduler.resume(task_queue, OPERATOR)

    assert [] == pool.batches
    assert not task_queue.is_paused_by(OPERATOR)

    worker.scheduler.resume(task_queue, "weights")

    assert [["a", "b"]] == pool.batches


def test_what_cannot_be_given_back_is_tried_again(worker: Worker, monkeypatch: pytest.MonkeyPatch):
    """Requests that the broker does not take back are kept, and tried again."""
    pause_control = PauseControl(worker, worker.scheduler)
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    task_queue.pause(pause_control)
    first, second = worker.send("pairs", "a", "b")
    for call in (first, second):
        call.expires, call.message = None, SimpleNamespace(delivery_info={})  # type: ignore[attr-defined]
    worker.task_consumer = SimpleNamespace(channel=None, _active_tags={})  # type: ignore[attr-defined]

    def refuse(requests: list[Any]) -> None:
        requests[0].reject(requeue=True)
        raise OSError("full")

    monkeypatch.setattr(worker.scheduler, "give_back", refuse)
    with pytest.raises(OSError, match="full"):
        pause_control._check()

    assert task_queue.is_paused
    assert [second] == task_queue.take_set_aside()


def test_late_answer_to_an_earlier_step_is_ignored(folder: Path):
    """Each step of a worker has a number of its own, over all reloads."""
    process = SimpleNamespace(pid=1, exitcode=None)
    pool = SimpleNamespace(_pool=SimpleNamespace(_pool=[process]), num_processes=1)
    warm_up: Any = SimpleNamespace(folder=folder, warm={1})
    found: dict[int, str | None] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as process_socket:
        process_socket.bind(str(folder / "1"))

        def begin() -> tuple[Iterator[int], dict[str, Any]]:
            steps = reload._run_in_pool(pool, warm_up, "single", "load", found)
            next(steps)
            return steps, json.loads(process_socket.recv(1 << 16))

        def answer(step: dict[str, Any], error: str) -> None:
            fields = {"pid": 1, "number": step["number"], "error": error}
            process_socket.sendto(json.dumps(fields).encode(), step["reply_to"])

        _, earlier = begin()
        steps, later = begin()
        answer(earlier, "late")
        still_pending = next(steps)
        answer(later, "in time")
        rest = list(steps)

    assert (1, []) == (still_pending, rest)
    assert {1: "in time"} == found


def test_delayed_reply_is_sent_when_it_is_known():
    """A future that a command returns is replied with its result; other replies at once."""
    sent: list[Any] = []

    class FakeNode:
        def reply(self, data: Any, ticket: str) -> None:
            sent.append((ticket, data))

    box = Pidbox.__new__(Pidbox)
    box.node = node = FakeNode()
    consumer = SimpleNamespace(steps=[SimpleNamespace(), SimpleNamespace(box=box)])
    for _ in range(2):  # as on two connections
        allow_delayed_replies(consumer)
    reply: Future[Any] = Future()
    node.reply({"w": reply}, ticket="later")
    node.reply({"w": "at once"}, ticket="now")
    reply.set_result({"ok": "done"})

    assert [("now", {"w": "at once"}), ("later", {"w": {"ok": "done"}})] == sent


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="cb-") as name:
        yield Path(name)


def test_the_replacement_of_a_pool_process_is_awaited_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, app: Celery
):
    """A step is done when each process has answered, or one that replaces it has loaded."""
    processes = [SimpleNamespace(pid=pid, exitcode=None) for pid in (os.getpid(), 1)]
    pool = SimpleNamespace(_pool=SimpleNamespace(_pool=processes), num_processes=2)
    warm_up: Any = SimpleNamespace(folder=folder, warm={os.getpid(), 1})
    monkeypatch.setattr("celery_batch.worker.executor.loader.run_step", lambda *_: "no weights")
    answers: dict[int, str | None] = {}
    steps = reload._run_in_pool(pool, warm_up, "single", "load", answers)
    first = next(steps)
    loader._listen(app, str(folder / "loading"))
    while next(steps) > 1:
        pass
    processes[1].exitcode = 1
    ended = next(steps)
    processes[1] = SimpleNamespace(pid=2, exitcode=None)
    replaced = next(steps)
    warm_up.warm.add(2)
    rest = list(steps)

    assert (2, 1, 1, []) == (first, ended, replaced, rest)
    assert {os.getpid(): "no weights"} == answers


def test_old_weights_are_freed(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """Objects that were excluded from collection at the start are not kept for ever."""
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(devices, "discover", lambda: ["cpu"])

    class Ring(EchoModel):
        def load(self, device: str) -> None:
            self.device, self.itself = device, self

    Ring.as_task(app, name="ring")
    old = weakref.ref(registry.instance_of(Ring))
    gc.freeze()
    try:
        errors = [loader.run_step(app, "ring", step) for step in ("load", "swap")]
    finally:
        gc.unfreeze()

    assert [None, None] == errors
    assert old() is None
    gc.freeze()  # as before the first test
    assert isinstance(registry.instance_of(Ring), Ring)
