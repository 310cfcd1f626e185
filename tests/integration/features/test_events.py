"""Events as Flower reads them: one task, one story."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from celery.events.receiver import EventReceiver
from celery.events.state import State

from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


class Watcher:
    """What Flower does: a receiver that feeds Celery's own picture of the cluster."""

    def __init__(self, shared: SharedSetup) -> None:
        self.state = State()
        self.kinds: dict[str, list[str]] = {}
        self._shared = shared
        self._connection = shared.app.connection_for_read()
        self._receiver = EventReceiver(
            self._connection, handlers={"*": self._on_event}, app=shared.app
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def _on_event(self, event) -> None:
        if "uuid" in event:
            self.kinds.setdefault(event["uuid"], []).append(event["type"])
        self.state.event(event)

    def start(self) -> None:
        """Return when the worker's heartbeats arrive."""
        self._thread.start()
        name = self._shared.worker.name

        def heard() -> bool:
            self._shared.app.control.heartbeat(destination=[name])
            return name in self.state.workers

        eventually(heard, "a heartbeat")

    def stop(self) -> None:
        """End the thread and its connection."""
        self._receiver.should_stop = True
        self._thread.join(20)
        self._connection.release()

    def task(self, result, kind: str):
        """Return the picture of a task once an event of this kind has come for it."""
        eventually(lambda: kind in self.kinds.get(result.id, []), f"{kind} of {result.id}")
        return self.state.tasks[result.id]


@pytest.fixture
def watcher(shared: SharedSetup) -> Iterator[Watcher]:
    """Somebody who watches the worker's events."""
    watcher = Watcher(shared)
    watcher.start()
    yield watcher
    watcher.stop()


@pytest.mark.pools(*EVERY_POOL)
def test_each_item_is_received_started_and_succeeds(shared: SharedSetup, watcher: Watcher):
    """Every item of a batch has its three events, its result, and the model's true runtime."""
    results = [shared.nap.delay(seconds) for seconds in (0.3, 0, 0)]
    shared.get(results)
    tasks = [watcher.task(result, "task-succeeded") for result in results]
    (batch, *_) = shared.batches("nap")
    together = [task for task, seconds in zip(tasks, (0.3, 0, 0), strict=True) if seconds in batch]

    assert {"SUCCESS"} == {task.state for task in tasks}
    assert {"f.nap"} == {task.name for task in tasks}
    assert {shared.worker.name} == {task.worker.hostname for task in tasks}
    assert [["task-received", "task-started", "task-succeeded"]] * 3 == [
        watcher.kinds[result.id] for result in results
    ]
    assert all(task.received <= task.started <= task.succeeded for task in tasks)
    assert tasks[0].runtime >= 0.3
    assert all(task.runtime < 10 for task in together)


def test_an_item_starts_when_its_batch_starts(shared: SharedSetup, watcher: Watcher):
    """A request in line has been received and not started; it starts with its batch."""
    gate = shared.close_gate()
    results = [shared.echo.delay(n) for n in range(3)]
    waiting = [watcher.task(result, "task-received").state for result in results]
    shared.wait_for_buffered("f.echo", 3)
    kinds = [watcher.kinds[result.id] for result in results]
    shared.open_gate(gate)
    tasks = [watcher.task(result, "task-succeeded") for result in results]
    started = [task.started for task in tasks]

    assert ["RECEIVED"] * 3 == waiting
    assert [["task-received"]] * 3 == [kind[:1] for kind in kinds]
    assert max(started) - min(started) < 5
    assert all(task.runtime < 5 for task in tasks)


@pytest.mark.pools(*EVERY_POOL)
def test_a_failed_item_is_reported_as_failed(shared: SharedSetup, watcher: Watcher):
    """``task-failed`` comes for the item that failed, with its error and traceback."""
    bad, good = shared.act.delay("fail"), shared.act.delay("good")
    failed, succeeded = watcher.task(bad, "task-failed"), watcher.task(good, "task-succeeded")

    assert "FAILURE" == failed.state
    assert "told to fail" in failed.exception
    assert "told to fail" in failed.traceback
    assert "SUCCESS" == succeeded.state


@pytest.mark.pools(*EVERY_POOL)
def test_a_retried_item_is_reported_as_retried(shared: SharedSetup, watcher: Watcher):
    """``task-retried`` comes for the item that is tried again, then its success."""
    again, good = shared.act.delay(shared.unique("retry")), shared.act.delay("good")
    task = watcher.task(again, "task-succeeded")
    watcher.task(good, "task-succeeded")

    assert "SUCCESS" == task.state
    assert 1 == watcher.kinds[again.id].count("task-retried")
    assert "task-retried" not in watcher.kinds[good.id]


def test_a_revoked_item_is_reported_as_revoked(shared: SharedSetup, watcher: Watcher):
    """``task-revoked`` comes for what was revoked in line, and for what expired there."""
    gate = shared.close_gate()
    unwanted = shared.echo.delay("unwanted")
    send = lambda end: shared.echo.apply_async(("stale",), expires=end)  # noqa: E731
    stale, expires = shared.send_to_expire(send, "f.echo", 2)
    shared.app.control.revoke(
        unwanted.id, reply=True, timeout=60.0, limit=1, destination=[shared.worker.name]
    )
    eventually(lambda: datetime.now(UTC) > expires, "the time to pass")
    shared.open_gate(gate)
    tasks = [watcher.task(result, "task-revoked") for result in (unwanted, stale)]

    assert ["REVOKED", "REVOKED"] == [task.state for task in tasks]
    assert [] == shared.items("echo")


def test_a_terminated_item_is_reported_as_revoked(shared: SharedSetup, watcher: Watcher):
    """``task-revoked`` comes at once for a running request that is terminated."""
    gate = shared.unique("gate")
    result = shared.hold_many.delay(gate, 1)
    shared.wait_at(gate)
    shared.app.control.revoke(result.id, terminate=True, destination=[shared.worker.name])
    task = watcher.task(result, "task-revoked")
    shared.open_gate(gate)

    assert "REVOKED" == task.state
    assert shared.echo.delay(1).get(timeout=30) == 1
    assert "task-succeeded" not in watcher.kinds[result.id]
