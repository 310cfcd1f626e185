"""An operator's orders: how they read, what they change in the lanes, how replies wait."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu.common import QoS

from celery_batch import BatchPolicy, ConfigurationError
from celery_batch.batching.batch import Reason
from celery_batch.config import OPTIONS
from celery_batch.runtime import devices, registry
from celery_batch.testing import EchoModel, ManualClock
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control import commands, reload
from celery_batch.worker.control.delayed_replies import DelayedReply
from celery_batch.worker.control.pause import PauseControl
from celery_batch.worker.control.runtime_config import RuntimeConfig
from celery_batch.worker.dispatch.outcome import BatchEnd, FollowUp
from celery_batch.worker.executor import loader
from celery_batch.worker.scheduling import prefetch
from tests.worker.doubles import Pool, Worker

OPERATOR = "who gives the orders"


class Heard:
    """Takes orders and keeps them."""

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []

    def configure(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Keep an order for batches."""
        self.orders.append((name, values))
        return {}

    def resume(self, names: list[str]) -> dict[str, Any]:
        """Keep an order to go on."""
        self.orders.append((names,))
        return {}

    def reload(self, name: str, **how: Any) -> DelayedReply:
        """Keep an order for weights."""
        self.orders.append((name, how))
        return DelayedReply(dict, 0.0)


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["t"], ("t", {})),
        (["t", "max_batch_size=32"], ("t", {"max_batch_size": 32})),
        (["t", "max_wait=0.02", "linger=None"], ("t", {"max_wait": 0.02, "linger": None})),
        (["t", "max_wait=a=b"], ("t", {"max_wait": "a=b"})),
        (
            ["t", "default", "max_wait=1"],
            ("t", {**dict.fromkeys(OPTIONS, "default"), "max_wait": 1}),
        ),
    ],
    ids=["show", "size", "waits", "no number", "default"],
)
def test_words_are_names_and_values(words: list[str], order: tuple[Any, ...]):
    """What a shell sends means what a program sends by name."""
    heard = Heard()
    commands.batch_config(heard, words)
    commands.batch_config(heard, task=order[0], **order[1])

    assert [order, order] == heard.orders


def test_words_of_a_reload():
    """The task comes first; how it is done may be a word or a value."""
    heard = Heard()
    commands.batch_reload(heard, ["t", "in_place", "wait=60"])
    commands.batch_reload(heard, task="t", in_place=True, wait=60)

    assert [("t", {"in_place": True, "wait": 60})] * 2 == heard.orders


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (commands.batch_config, ["t", "u"]),
        (commands.batch_pause, ["t", "max_wait=1"]),
        (commands.batch_resume, ["max_wait=1"]),
        (commands.batch_reload, ["t", "gently=1"]),
    ],
    ids=["second name", "value for a pause", "value for a resume", "unknown way"],
)
def test_words_that_mean_nothing_are_named(order: Any, words: list[str]):
    """The error says which word it was and what could be written."""
    with pytest.raises(ConfigurationError, match="not understood; write: batch_"):
        order(Heard(), words)


@pytest.fixture
def runtime_config(worker: Worker) -> RuntimeConfig:
    """The orders to a worker whose queues are of no interest."""
    served_tasks: Any = SimpleNamespace(refresh=lambda: None)
    return RuntimeConfig(worker, worker.scheduler, served_tasks)


def test_size_holds_from_the_next_batch(runtime_config: RuntimeConfig, worker: Worker, pool: Pool):
    """What is full by the new size leaves at once, and the job knows the size."""
    worker.send("trios", "a")
    worker.send("trios", "b")
    runtime_config.configure("trios", {"max_batch_size": 1})

    assert [["a"], ["b"]] == pool.batches
    assert [1, 1] == [sent.deliveries.most for sent in pool.sent]

    runtime_config.configure("trios", {"max_batch_size": "default"})

    assert (
        BatchPolicy(3, 10.0, 2.0) == worker.scheduler.task_queue(worker.app.tasks["trios"]).policy
    )


def test_prefetch_follows_the_sizes(app: Celery):
    """More, less, and no less than the worker's user has asked for; no limit stays none."""
    consumer = SimpleNamespace(
        prefetch_multiplier=9,
        initial_prefetch_count=18,
        qos=QoS(lambda **_: None, 20),  # two messages with an ETA are held beside
        controller=SimpleNamespace(
            batch_context=WorkerContext(user_prefetch=4), prefetch_multiplier=9
        ),
    )
    single, trios = app.tasks["single"], app.tasks["trios"]
    wanted = prefetch.held_per_process([single, trios], lambda _: BatchPolicy(5))
    changes = [prefetch.hold(consumer, each) for each in (wanted, 1)]
    held = consumer.qos.value
    consumer.prefetch_multiplier = 0

    assert 30 == wanted
    assert [(18, 60), (60, 8)] == changes
    assert 8 + 2 == held
    assert (0, 0) == prefetch.hold(consumer, 50)


def test_paused_lane_keeps_newcomers_and_lets_second_tries_run(worker: Worker, pool: Pool):
    """Nobody new leaves; who runs again because its batch broke is part of what runs."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    worker.send("pairs", "a", "b", "c")
    task_queue.pause(OPERATOR)
    worker.send("pairs", "d", "e")
    pool.sent[0].callback(BatchEnd([None, (0, None, 0.0)], follow_up=FollowUp.BROKE_OFF))

    assert [["a", "b"], ["a"]] == pool.batches
    assert 1 == task_queue.reasons[Reason.ALONE]
    assert 3 == task_queue.report()["waiting"]

    pool.finish()
    worker.scheduler.resume(task_queue, OPERATOR)

    assert [["a", "b"], ["a"], ["c", "d"]] == pool.batches
    assert 1 == task_queue.report()["waiting"]


def test_kept_requests_count_for_room_and_go_back_with_the_connection(worker: Worker):
    """A paused lane reads no more than it would, and forgets what it keeps at the end."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    before = worker.scheduler.room.left(["pairs"], [0])[0]
    task_queue.pause(OPERATOR)
    calls = worker.send("pairs", "a", "b", "c")
    after = worker.scheduler.room.left(["pairs"], [0])[0]
    worker.scheduler.close(restarting=True)

    assert 3 == before - after
    assert not task_queue.kept
    assert task_queue.kept is not None
    assert not any(call.acknowledged for call in calls)


def test_nobody_waits_for_an_end_while_paused(worker: Worker, clock: ManualClock):
    """Who has expired or was revoked is given up, others stay."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    task_queue.pause(OPERATOR)
    for call, expires, unwanted in zip(
        worker.send("pairs", "a", "b", "c"), [True, True, None], [True, False, True], strict=True
    ):
        call.expires, call.unwanted = expires, unwanted  # type: ignore[attr-defined]
    clock.advance(1.0)

    assert task_queue.kept is not None
    assert 1 == task_queue.kept.leave_out()
    assert ["b", "c"] == [request.id for request, _ in task_queue.kept.take()]


def test_kept_requests_wait_from_their_arrival(
    runtime_config: RuntimeConfig, worker: Worker, pool: Pool, clock: ManualClock
):
    """The age and the wait of who was kept count the pause, also after it has ended."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    before = worker.scheduler.ages(clock())["pairs"]
    (early,) = worker.send("pairs", "a")
    came = clock()
    task_queue.pause(OPERATOR)
    clock.advance(1.0)
    late = worker.send("pairs", "b", "c")
    clock.advance(4.0)
    paused = runtime_config.halted("pairs")
    ages = [worker.scheduler.ages(clock())["pairs"]]
    worker.scheduler.resume(task_queue, OPERATOR)
    clock.advance(1.0)
    ages.append(worker.scheduler.ages(clock())["pairs"])

    assert 0.0 == before
    assert {"paused": True, "drained": False} == paused
    assert [5.0, 5.0] == ages  # of the first, and of the last, who still waits
    assert ["a", "b"] == pool.batches[0]
    assert [came, came + 1.0, came + 1.0] == [each.arrived for each in (early, *late)]


def test_who_has_waited_out_a_pause_waits_for_no_company(
    worker: Worker, pool: Pool, clock: ManualClock
):
    """A batch that was due long ago leaves as soon as it may, though it is not full."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    task_queue.pause(OPERATOR)
    worker.send("pairs", "a")
    clock.advance(60.0)
    worker.scheduler.resume(task_queue, OPERATOR)

    assert [["a"]] == pool.batches
    assert 1 == task_queue.reasons[Reason.TIMEOUT]


def test_requests_are_handed_back_once(worker: Worker):
    """What is handed back is rejected for others, and known as what never ran."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    task_queue.pause(OPERATOR)
    calls = worker.send("pairs", "a", "b")
    worker.scheduler.hand_back([request for request, _ in task_queue.resume(OPERATOR)])

    assert ["a", "b"] == worker.told("rejected")
    assert 2 == len(worker.scheduler._redelivery)
    assert all(call.acknowledged for call in calls)


def test_paused_lane_runs_on_whose_message_is_nobodys(worker: Worker):
    """A request that was acknowledged before it ran again could not be given back."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["trios"])
    worker.send("trios", "a", "b")[0].acknowledge()
    task_queue.pause(OPERATOR)
    worker.scheduler.pump()

    assert task_queue.kept is not None
    assert ["b"] == [request.id for request, _ in task_queue.kept.take()]
    assert 1 == task_queue.report()["waiting"]


def test_lane_goes_on_when_all_have_resumed_it(worker: Worker, pool: Pool):
    """Weights that are loaded in place end no pause of the operator's, and the reverse."""
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
    """A broker that refuses leaves nobody in a worker that has forgotten him."""
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

    monkeypatch.setattr(worker.scheduler, "hand_back", refuse)
    with pytest.raises(OSError, match="full"):
        pause_control._look()

    assert task_queue.kept is not None
    assert [(second, False)] == task_queue.kept.take()


def test_late_answer_to_an_order_that_is_over_is_no_answer(folder: Path):
    """Each step has a number of its own, over all orders of a worker."""
    pool = SimpleNamespace(_pool=SimpleNamespace(_pool=[]))
    numbers = []
    for _ in range(2):
        crew = reload.PoolLoader(pool, folder)
        crew.begin("single", "load")
        numbers.append(crew._order["number"])
        crew.close()

    assert numbers[0] < numbers[1]


def test_later_reply_is_given_once():
    """Who asked hears it when it is known, and nothing after that."""
    heard: list[Any] = []
    later = DelayedReply(lambda: {"ok": "at it"}, 1.0)
    later.then(heard.append)
    later.give(later.so_far())
    later.give({"ok": "done"})
    known = DelayedReply(dict, 1.0)
    known.give({"ok": "at once"})
    known.then(heard.append)

    assert [{"ok": "at it"}, {"ok": "at once"}] == heard


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="cb-") as name:
        yield Path(name)


def test_pool_process_that_is_gone_is_not_awaited(
    folder: Path, monkeypatch: pytest.MonkeyPatch, app: Celery
):
    """A step is done when each process has answered, or has been replaced."""
    processes = [SimpleNamespace(pid=pid, exitcode=None) for pid in (os.getpid(), 1)]
    pool = SimpleNamespace(_pool=SimpleNamespace(_pool=processes))
    monkeypatch.setattr("celery_batch.worker.executor.loader.carry_out", lambda *_: "no weights")
    crew = reload.PoolLoader(pool, folder)
    crew.begin("single", "load")
    first = crew.answers()
    renewing_listens(app, folder)
    while crew.at_it > 1:
        crew.answers()
    processes[1].exitcode = 1
    answers = crew.answers()
    crew.close()

    assert first is None
    assert {os.getpid(): "no weights"} == answers


def test_old_weights_are_let_go_of(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """What was put out of the collector's sight at the start is not kept for ever."""
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(devices, "discover", lambda: ["cpu"])

    class Ring(EchoModel):
        def load(self, device: str) -> None:
            self.device, self.itself = device, self

    Ring.as_task(app, name="ring")
    old = weakref.ref(registry.instance_of(Ring))
    gc.freeze()
    try:
        errors = [loader.carry_out(app, "ring", step) for step in ("load", "take up")]
    finally:
        gc.unfreeze()

    assert [None, None] == errors
    assert old() is None
    assert isinstance(registry.instance_of(Ring), Ring)


def renewing_listens(app: Celery, folder: Path) -> None:
    """Take orders in this process, as a pool process does."""
    loader.listen(app, str(folder / "loading"))
    assert any(thread.name == "batch-orders" for thread in threading.enumerate())
