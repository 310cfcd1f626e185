"""Copies of messages that must not run again, written in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pytest
from celery import Celery

from celery_batch.worker.intake import dead_letters
from celery_batch.worker.intake.dead_letters import DeadLetters


class Consumer:
    """A consumer whose event loop runs when a test lets it."""

    def __init__(self, queue: str | None) -> None:
        self.app = Celery("letters", broker="memory://", set_as_current=False)
        self.app.conf.batch_dead_letter_queue = queue
        self.soon: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.call_soon = self.soon.put


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    """A consumer with a dead-letter queue."""
    consumer = Consumer("dead")
    yield consumer
    consumer.app.close()


@dataclass
class Written:
    """What is written, and in which thread, once the test opens the gate."""

    queue: SimpleQueue[tuple[Any, threading.Thread]]
    open: Callable[[], None]

    def get(self) -> tuple[Any, threading.Thread]:
        """Return what is written next."""
        return self.queue.get(timeout=60)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """A broker that takes nothing until the test opens the gate."""
    written: SimpleQueue[tuple[Any, threading.Thread]] = SimpleQueue()
    validator = threading.Event()

    def write(_: DeadLetters, __: str, body: Any, ___: dict[str, Any]) -> None:
        validator.wait(60)
        written.put((body, threading.current_thread()))

    monkeypatch.setattr(DeadLetters, "_write", write)
    yield Written(written, validator.set)
    validator.set()


def test_a_letter_is_written_on_a_thread_and_followed_on_the_loop(
    consumer: Consumer, written: Written
):
    """The caller goes on at once, and the callback runs on the loop."""
    letters, done = DeadLetters(consumer), []
    letters.write_refused(b"a", "why", lambda: done.append("a"))
    assert [] == done
    written.open()
    body, thread = written.get()
    consumer.soon.get(timeout=60)()
    letters.close()

    assert (b"a", ["a"]) == (body, done)
    assert thread is not threading.current_thread()


def test_without_a_queue_nothing_is_put_off(written: Written):
    """The callback runs at once, and no thread is started."""
    done: list[str] = []
    before = set(threading.enumerate())
    DeadLetters(Consumer(None)).write_refused(b"a", "why", lambda: done.append("a"))

    assert ["a"] == done
    assert not set(threading.enumerate()) - before
    assert written.queue.empty()


def test_waiting_letters_are_limited(
    consumer: Consumer,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """A large one is written if none waits; the others are dropped, and the log says so."""
    monkeypatch.setattr(dead_letters, "_MOST_BYTES", 10)
    letters, done = DeadLetters(consumer), []
    letters.write_refused(b"x" * 20, "why", lambda: done.append("large"))
    letters.write_refused(b"y", "why", lambda: done.append("small"))
    assert ["small"] == done
    written.open()
    consumer.soon.get(timeout=60)()
    letters.write_refused(b"z", "why", lambda: done.append("later"))
    consumer.soon.get(timeout=60)()
    letters.close()

    assert ["small", "large", "later"] == done
    assert [b"x" * 20, b"z"] == [written.get()[0] for _ in range(2)]
    assert ["Could not write a message to dead: too many wait to be written"] == caplog.messages


def test_a_letter_that_comes_after_the_close_is_written_at_once(
    consumer: Consumer, written: Written
):
    """A loop that has ended would never run the callback."""
    letters, done = DeadLetters(consumer), []
    letters.close()
    written.open()
    letters.write_refused(b"a", "why", lambda: done.append("a"))
    body, thread = written.get()

    assert (b"a", ["a"]) == (body, done)
    assert thread is threading.current_thread()
    assert consumer.soon.empty()
