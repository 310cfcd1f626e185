"""No fork while a thread connects: the child would wait for ever for its locks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
import redis
from celery.utils.functional import noop

from celery_batch.processes import fork_guard
from celery_batch.processes.fork_guard import forks_delayed
from celery_batch.processes.managed_process import wait_until
from celery_batch.worker.intake.background_thread import BackgroundThread
from celery_batch.worker.redis.owner import own_pool


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long timeout, for slow machines."""
    monkeypatch.setattr(fork_guard, "_TIMEOUT", 60.0)


@pytest.fixture
def order() -> list[str]:
    """The order of events."""
    return []


@pytest.fixture
def on_a_thread() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Run a function on a thread, which ends with the test."""
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
    """Fork, and have the child connect."""
    pid = os.fork()
    if not pid:
        with forks_delayed():
            os._exit(7)
    order.append("forked")
    _, status = os.waitpid(pid, 0)
    order.append(f"child {os.waitstatus_to_exitcode(status)}")


def test_a_fork_waits_for_connecting_threads(
    order: list[str], on_a_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    """The fork waits for them, later ones wait for the fork, and the child can connect."""

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
    """A server that does not answer delays a fork for a moment, and the child can connect."""
    monkeypatch.setattr(fork_guard, "_TIMEOUT", 0.0)
    with forks_delayed():
        on_a_thread(lambda: forked(order)).join()

    assert ["forked", "child 7"] == order
    assert "forked while a thread connects" in caplog.text


def test_a_workers_own_connections_delay_forks(
    order: list[str], on_a_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    """A fork waits for the connections of the lease and other threads of a worker."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow(redis.Connection):
        """Connects when the test lets it."""

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


def test_background_work_delays_forks(
    order: list[str], on_a_thread: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    """A dead letter may be written on a new connection while a dead process is replaced."""
    begun, may_end = threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait(60)
        order.append("written")

    background = BackgroundThread()
    background.submit(write, noop)
    begun.wait(60)
    on_a_thread(lambda: forked(order))
    until(lambda: fork_guard._state.forking)
    may_end.set()
    until(lambda: "child 7" in order)
    background.close()

    assert ["written", "forked", "child 7"] == order


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    wait_until(lambda: "" if holds() else "it has not come", [], what="it", timeout=60)
