"""What a worker can say of its queues, and that nobody waits long for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_batch.processes.managed_process import wait_until
from celery_batch.worker.metrics import exporter
from celery_batch.worker.metrics.exporter import Depths
from tests.conftest import Shop


def test_messages_in_queues_are_counted(each_shop: Shop):
    """On Redis and on RabbitMQ; a queue that nobody has made is empty."""
    for n in range(3):
        each_shop.double.delay(n)
    found = Depths(each_shop.app, ["celery", "nowhere"])

    wait_until(
        lambda: "" if {"celery": 3, "nowhere": 0} == found.look() else f"{found.look()}",
        [],
        what="the queues",
        timeout=30,
    )
    found.close()


def test_broker_that_does_not_answer_keeps_nobody(monkeypatch: pytest.MonkeyPatch):
    """Who asks goes on without, and when the answer is there it is told."""
    answer = threading.Event()

    def count(_queue: str) -> int:
        answer.wait(30)
        return 5

    look = SimpleNamespace(count=count, close=answer.set)
    monkeypatch.setattr(exporter, "_TIMEOUT", 0.01)
    monkeypatch.setattr(exporter, "open_depth_reader", lambda _: look)
    found = Depths(Celery(broker="redis://", set_as_current=False), ["celery"])

    assert {} == found.look() == found.look()

    answer.set()
    wait_until(
        lambda: "" if {"celery": 5} == found.look() else "no answer", [], what="it", timeout=30
    )


def test_broker_that_refuses_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch):
    """An error is no answer, the connection is given up, and it is not asked again at once."""
    heard: list[str] = []

    def count(_queue: str) -> int:
        heard.append("asked")
        raise OSError("gone")

    look = SimpleNamespace(count=count, close=lambda: heard.append("closed"))
    monkeypatch.setattr(exporter, "open_depth_reader", lambda _: look)
    found = Depths(Celery(broker="redis://", set_as_current=False), ["celery"])

    assert {} == found.look() == found.look()
    assert ["asked", "closed"] == heard


def test_other_brokers_say_nothing():
    """Where nobody can look, nothing is told, and nobody connects."""
    found = Depths(Celery(broker="memory://", set_as_current=False), ["celery"])

    assert {} == found.look()
