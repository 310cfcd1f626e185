"""The depths of broker queues: read on a thread, and never awaited for long."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_batch.processes.managed_process import wait_until
from celery_batch.worker.metrics import exporter
from celery_batch.worker.metrics.exporter import QueueDepths
from tests.conftest import Setup


def test_messages_in_queues_are_counted(each_setup: Setup):
    """Messages are counted on Redis and on RabbitMQ; a queue that does not exist is empty."""
    for n in range(3):
        each_setup.double.delay(n)
    found = QueueDepths(each_setup.app, ["celery", "nowhere"])

    wait_until(
        lambda: "" if {"celery": 3, "nowhere": 0} == found.read() else f"{found.read()}",
        [],
        what="the queues",
        timeout=30,
    )
    found.close()


def test_scrape_does_not_wait_for_a_broker(monkeypatch: pytest.MonkeyPatch):
    """A scrape goes on without an answer, and a later one has it."""
    answer = threading.Event()

    def count(_queue: str) -> int:
        answer.wait(30)
        return 5

    reader = SimpleNamespace(count=count, close=answer.set)
    monkeypatch.setattr(exporter, "_TIMEOUT", 0.01)
    monkeypatch.setattr(exporter, "open_depth_reader", lambda _: reader)
    found = QueueDepths(Celery(broker="redis://", set_as_current=False), ["celery"])

    assert {} == found.read() == found.read()

    answer.set()
    wait_until(
        lambda: "" if {"celery": 5} == found.read() else "no answer", [], what="it", timeout=30
    )


def test_broker_is_not_asked_again_soon_after_an_error(monkeypatch: pytest.MonkeyPatch):
    """After an error the connection is closed, and the next read does not ask the broker."""
    calls: list[str] = []

    def count(_queue: str) -> int:
        calls.append("asked")
        raise OSError("gone")

    reader = SimpleNamespace(count=count, close=lambda: calls.append("closed"))
    monkeypatch.setattr(exporter, "open_depth_reader", lambda _: reader)
    monkeypatch.setattr(exporter, "_PAUSE", 600.0)
    found = QueueDepths(Celery(broker="redis://", set_as_current=False), ["celery"])

    assert {} == found.read()
    wait_until(
        lambda: "" if "closed" in calls and found._thread is None else f"{calls}",
        [],
        what="the error",
        timeout=60,
    )
    assert {} == found.read()
    assert ["asked", "closed"] == calls


def test_other_brokers_have_no_depths():
    """Depths of other brokers are not read, and nothing connects."""
    found = QueueDepths(Celery(broker="memory://", set_as_current=False), ["celery"])

    assert {} == found.read()
