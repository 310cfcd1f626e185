"""Requests that would be late are refused together, and one by one if that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.task import Context
from kombu.asynchronous import Hub

from celery_batch import BatchTask, QueueFull
from celery_batch.worker.scheduling.completion import Completion
from celery_batch.worker.scheduling.redelivery import RedeliveryCache


class LateRequest:
    """As much of Celery's request as is used here."""

    is_done = acknowledged = was_rejected = False
    store_errors = True
    payload_key = None
    args, kwargs = ("late",), {}

    def __init__(self, task: Any, name: str) -> None:
        self.task, self.id, self.name = task, name, task.name
        self.key = (name, 0)
        self._context = Context()
        self.failures: list[Any] = []

    def acknowledge(self) -> None:
        """Note it."""
        self.acknowledged = True

    def send_event(self, *_: Any, **__: Any) -> None:
        """Send nothing."""

    def acknowledging_last(self) -> Any:
        """Do nothing around a handler."""
        return pytest.MonkeyPatch.context()

    def on_failure(self, einfo: Any) -> None:
        """Note why it has failed."""
        self.failures.append(einfo.exception)
        self.acknowledged = True


@pytest.fixture
def task() -> Any:
    """A task with a target, whose results are kept in memory."""
    app = Celery("late", backend="cache+memory://", set_as_current=False)

    @app.task(base=BatchTask, name="late.t", target_latency=0.1, shed=True)
    def late(x: list[Any]) -> list[Any]:
        return x

    return late


def completion(hub: Any) -> Completion:
    """Return what completes requests, with this event loop or without one."""
    consumer = SimpleNamespace(hub=hub, app=Celery(set_as_current=False))
    return Completion(consumer, RedeliveryCache(), lambda *_: None, lambda _: False)


@pytest.mark.parametrize("has_loop", [True, False])
def test_refusals_are_stored_together(task: Any, has_loop: bool):  # noqa: FBT001
    """With the next pass of the event loop, or at once; then they are acknowledged."""
    hub, found = (Hub() if has_loop else None), list[Any]()
    completing = completion(hub)
    requests = [LateRequest(task, name) for name in ("a", "b")]

    def note(sender: Any, task_id: str, exception: Any, **_: Any) -> None:
        found.append((sender, task_id, exception.retry_after))

    signals.task_failure.connect(note)
    try:
        for late, request in zip((0.05, 5.0), requests, strict=True):
            completing.refuse(request, late, 0.1)
        assert has_loop is not any(each.acknowledged for each in requests)
        if hub is not None:
            for each in hub._pop_ready():
                each()
    finally:
        signals.task_failure.disconnect(note)
    stored = [task.AsyncResult(each.id).result for each in requests]

    assert all(each.acknowledged for each in requests)
    assert [QueueFull, QueueFull] == [type(each) for each in stored]
    assert [(task, "a", 0.1), (task, "b", 1.0)] == found


def test_an_error_of_one_refusal_does_not_repeat_the_others(task: Any):
    """Once the errors are stored, each is announced and acknowledged once, whatever fails."""
    hub, sent = Hub(), list[str]()
    completing = completion(hub)
    requests = [LateRequest(task, name) for name in ("a", "b", "c")]

    def send(request: Any) -> None:
        sent.append(request.id)
        if request.id == "b":
            raise RuntimeError("no way to the events")

    for request in requests:
        request.send_event = lambda *_, _request=request, **__: send(_request)  # type: ignore[method-assign]
        completing.refuse(request, 0.2, 0.1)
    for each in hub._pop_ready():
        each()

    assert ["a", "b", "c"] == sent
    assert all(each.acknowledged for each in requests)
    assert not any(each.failures for each in requests)


def test_what_cannot_be_stored_together_is_refused_one_by_one(
    task: Any, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is lost if the result backend refuses the write."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(task.backend, "mark_as_failure", fail)
    request = LateRequest(task, "a")
    completion(None).refuse(request, 0.2, 0.1)

    assert request.acknowledged
    assert [0.2] == [getattr(each, "exc", each).retry_after for each in request.failures]
