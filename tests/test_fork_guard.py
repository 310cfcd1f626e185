"""No fork beside a thread that connects: the child would wait for ever for what it holds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
import redis
from celery.utils.functional import noop

from celery_batch import fork_guard
from celery_batch.fork_guard import forks_delayed
from celery_batch.processes.managed_process import wait_until
from celery_batch.worker.intake.background_thread import BackgroundThread
from celery_batch.worker.redis.owner import own_pool


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no server that does not answer."""
    monkeypatch.setattr(fork_guard, "_TIMEOUT", 60.0)


@pytest.fixture
def order() -> list[str]:
    """What came after what."""
    return []


@pytest.fixture
def on_a_thread() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Run something on a thread, which ends with the test."""
    threads: list[threading.Thread] = []

    def run(what: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=what)
        threads.append(thread)
        thread.start()
        return thread

    yield run
    for thread in threads:
        thread.join()


def forked(order: list[str]) -> None:
    """Fork, and have the child connect, too."""
    pid = os.fork()
    if not pid:
        with forks_delayed():
            os._exit(7)
    order.append("forked")
    _, status = os.waitpid(pid, 0)
    order.append(f"child {os.waitstatus_to_exitcode(status)}")


def test_a_fork_waits_for_who_connects(
    order: list[str], on_a_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    """It comes after them, whoever comes meanwhile waits for it, and the child is free."""

    def connect() -> None:
        with forks_delayed():
            order.append("second")

    with forks_delayed():
        on_a_thread(lambda: forked(order))
        until(lambda: fork_guard._state.forking)
        second = on_a_thread(connect)
        order.append("first")
    second.join()
    until(lambda: "child 7" in order)

    assert ["first", "forked"] == order[:2]


def test_a_fork_does_not_wait_for_ever(
    order: list[str],
    on_a_thread: Callable[[Callable[[], object]], threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that does not answer keeps no worker's loop, and the child is free all the same."""
    monkeypatch.setattr(fork_guard, "_TIMEOUT", 0.0)
    with forks_delayed():
        on_a_thread(lambda: forked(order)).join()

    assert ["forked", "child 7"] == order
    assert "forked while a thread connects" in caplog.text


def test_a_workers_own_connections_hold_forks_off(
    order: list[str], on_a_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    """A fork waits for what the lease and its like connect with, on threads of their own."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow(redis.Connection):
        """Takes as long as it is told to."""

        def _connect(self) -> None:
            begun.set()
            may_end.wait(60)
            order.append("connected")
            raise OSError

    pool = SimpleNamespace(connection_class=Slow, connection_kwargs={})
    own = own_pool(SimpleNamespace(pool=pool), 1.0)

    def connect() -> None:
        with suppress(redis.ConnectionError):
            own.get_connection()

    on_a_thread(connect)
    begun.wait(60)
    on_a_thread(lambda: forked(order))
    until(lambda: fork_guard._state.forking)
    may_end.set()
    until(lambda: "child 7" in order)

    assert ["connected", "forked", "child 7"] == order


def test_what_a_worker_puts_off_holds_forks_off(
    order: list[str], on_a_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    """A dead letter is written, on a connection perhaps, as the process that died is replaced."""
    begun, may_end = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait(60)
        order.append("written")

    teller = BackgroundThread()
    teller.soon(write, noop)
    begun.wait(60)
    on_a_thread(lambda: forked(order))
    until(lambda: fork_guard._state.forking)
    may_end.set()
    until(lambda: "child 7" in order)
    teller.close()

    assert ["written", "forked", "child 7"] == order


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    wait_until(lambda: "" if holds() else "it has not come", [], what="it", timeout=60)
