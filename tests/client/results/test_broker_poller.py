"""Connections of the threads that poll the broker, with readers of the tests' own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_batch.client import background, queue_depth, served
from celery_batch.client.background import BrokerPoller
from celery_batch.client.queue_depth import DepthPoller
from celery_batch.client.served import ServedPoller
from tests.services.shared_setup import eventually


class Reader:
    """Answers 3 and True until it is closed or its connection is lost."""

    def __init__(self) -> None:
        self.is_open = True

    def count(self, _queue: str) -> int:
        """Return how many messages wait."""
        if not self.is_open:
            raise ConnectionError("closed")
        return 3

    def is_served(self, queue: str, _task: str) -> bool:
        """Return that a task is served."""
        return bool(self.count(queue))

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False


@pytest.fixture
def app() -> Celery:
    """An app whose broker is never reached."""
    return Celery("poller", broker="redis://127.0.0.1:1/0", set_as_current=False)


@pytest.fixture
def readers(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """The readers that are opened for the app."""
    opened: list[Reader] = []
    open_depth_reader = background.open_depth_reader

    def open_reader(other: Any) -> Any:
        if other is not app:  # threads of earlier tests may poll for a while
            return open_depth_reader(other)
        opened.append(Reader())
        return opened[-1]

    monkeypatch.setattr(background, "open_depth_reader", open_reader)
    return opened


def depth_of(poller: DepthPoller) -> bool:
    """Return whether a depth is known, and have it measured."""
    return poller.depth("celery", time.monotonic()).waiting(time.monotonic()) == 3


def is_served(poller: ServedPoller) -> bool:
    """Return whether a task is known to be served, and have it polled."""
    answer = poller.request("celery", "task")
    return answer.done() and answer.result() is True


@pytest.mark.parametrize(("kind", "ask"), [(DepthPoller, depth_of), (ServedPoller, is_served)])
def test_a_call_as_the_thread_ends_keeps_its_connection(
    app: Celery,
    readers: list[Reader],
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[Celery], BrokerPoller],
    ask: Callable[[Any], bool],
) -> None:
    """A thread that ends closes its own connection, and not that of a call that comes just then."""
    waits = (background, "IDLE"), (queue_depth, "_LINGER"), (served, "_LINGER")
    for module, name in waits:
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(Reader, "count", lambda _self, _queue: 0 if len(readers) == 1 else 3)
    monkeypatch.setattr(served, "FRESH", 0.0)
    poller, closed, is_alone = kind(app), threading.Event(), []

    def close() -> None:
        if not closed.is_set():
            ask(poller)
            is_alone.append(poller._thread._thread is threading.current_thread())
            poller._close_reader()
            for module, name in (*waits, (served, "FRESH")):
                monkeypatch.setattr(module, name, 60.0)
            closed.set()

    poller._thread._close = close
    ask(poller)
    assert closed.wait(60)
    eventually(lambda: ask(poller), "an answer")

    assert [True] == is_alone
    assert [False, True] == [each.is_open for each in readers]


def test_a_lost_connection_is_opened_again(app: Celery, readers: list[Reader]) -> None:
    """A read that fails on an open connection is tried on a new one, and then no more."""
    poller = DepthPoller(app)
    count = lambda reader: reader.count("celery")  # noqa: E731
    assert 3 == poller._read(count)
    readers[0].close()

    assert 3 == poller._read(count)
    with pytest.raises(ZeroDivisionError):
        poller._read(lambda _: 1 / 0)
    assert [False] * 3 == [each.is_open for each in readers]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_replaced(
    app: Celery, readers: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call starts a thread if the last one was ended by something that is no error."""
    poller = DepthPoller(app)
    with monkeypatch.context() as dying:
        dying.setattr(Reader, "count", lambda *_: sys.exit())
        depth_of(poller)
        eventually(lambda: not poller._thread.is_alive, "the thread's end")
    eventually(lambda: depth_of(poller), "a measurement")

    assert readers


def test_a_caller_that_waits_for_long_is_answered(
    app: Celery, readers: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is answered although it came before the time for which tasks are polled."""
    monkeypatch.setattr(served, "_LINGER", -1.0)

    assert ServedPoller(app).request("celery", "task").result(60)
    assert 1 == len(readers)
