"""Threads that run while there is work, and objects that an app has once in each process."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery

from celery_batch.client import background
from celery_batch.client.background import OnDemandThread
from celery_batch.processes.per_process import PerProcess
from tests.services.eventually import eventually

SOON = 20.0


def test_thread_ends_without_work_and_starts_again(monkeypatch: pytest.MonkeyPatch):
    """A thread that has had no work for a while ends; what comes later has another one."""
    monkeypatch.setattr(background, "IDLE", 0.01)
    ended = threading.Semaphore(0)
    workers: list[threading.Thread] = []

    def work() -> None:
        workers.append(threading.current_thread())

    def has_ended() -> None:
        assert not thread.is_alive

    thread = OnDemandThread("worker", work, ended.release)
    for _ in range(2):
        thread.wake()
        assert ended.acquire(timeout=SOON)
        eventually(has_ended)  # soon after it has closed

    assert 2 == len(set(workers))


def test_one_wake_is_one_piece_of_work(monkeypatch: pytest.MonkeyPatch):
    """The wake that starts a thread does not have its work done twice."""
    monkeypatch.setattr(background, "IDLE", 0.01)
    worked: list[None] = []
    ended = threading.Event()
    OnDemandThread("worker", lambda: worked.append(None), ended.set).wake()

    assert ended.wait(SOON)
    assert 1 == len(worked)


def test_stopped_thread_ends_at_once(monkeypatch: pytest.MonkeyPatch):
    """A thread that is stopped waits for no more work; what is woken later ends soon, too."""
    monkeypatch.setattr(background, "IDLE", 100.0)
    worked, ended = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> None:
        worked.release()

    thread = OnDemandThread("worker", work, ended.release)
    thread.wake()
    assert worked.acquire(timeout=SOON)
    assert not ended.acquire(timeout=0.05)
    thread.stop()
    assert ended.acquire(timeout=SOON)
    thread.wake()

    assert ended.acquire(timeout=SOON)


def test_what_comes_as_the_thread_ends_is_done():
    """A wake at the last moment, which still finds the thread alive, is not lost."""
    waiting, done = ["early"], []

    def work() -> None:
        done.extend(waiting)
        waiting.clear()

    thread = OnDemandThread("worker", work)

    class Wakeup:
        """Wakes nobody at first; then work comes when the thread has given up waiting."""

        is_late = False

        def acquire(self, *, timeout: float | None = None, blocking: bool = True) -> bool:
            """Wait in vain; at the last look, find what has come meanwhile."""
            if timeout or blocking or self.is_late:
                return False
            waiting.append("late")
            self.is_late = True
            return True

    thread._wakeup = Wakeup()  # type: ignore[assignment]
    thread._run()

    assert ["early", "late"] == done


def test_no_thread_starts_before_the_last_one_has_closed(monkeypatch: pytest.MonkeyPatch):
    """Work that comes while a thread closes is done by the same thread, after it has closed."""
    monkeypatch.setattr(background, "IDLE", 0.01)
    worked, closers = threading.Event(), []
    workers: list[threading.Thread] = []

    def work() -> None:
        workers.append(threading.current_thread())
        worked.set()

    def close() -> None:
        if not closers:
            worked.clear()
            thread.wake()
            closers.append(thread._thread)

    thread = OnDemandThread("worker", work, close)
    thread.wake()
    closer = eventually(lambda: closers[0])
    assert worked.wait(SOON)

    assert {closer} == set(workers)


def test_a_signal_handler_that_interrupts_a_start_starts_no_other(monkeypatch: pytest.MonkeyPatch):
    """Of two wakes, one within the other's start of a thread, one thread comes."""
    started, worked = [], threading.Event()

    class Interrupted(threading.Thread):
        """Is woken while it starts, as by a signal handler."""

        def start(self) -> None:
            """Wake, and start."""
            started.append(self)
            thread.wake()
            super().start()

    monkeypatch.setattr(background.threading, "Thread", Interrupted)
    thread = OnDemandThread("worker", worked.set)
    thread.wake()

    assert worked.wait(SOON)
    assert 1 == len(started)


def test_thread_works_again_when_it_is_due():
    """Work that says when it is due again is done then, with no wake."""
    times = iter([0.001, 0.001, None])
    done = threading.Event()

    def work() -> float | None:
        due = next(times)
        if due is None:
            done.set()
        return due

    OnDemandThread("worker", work).wake()

    assert done.wait(SOON)


def _pid(app: Celery, told: Any) -> None:
    told.put(PerProcess.of(app).pid)


def test_app_has_one_object_in_each_process():
    """All threads have the same one, another class another one, and a fork its own."""

    class Other(PerProcess):
        pass

    app = Celery("objects", set_as_current=False)
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: PerProcess.of(app), range(64)))
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    child = context.Process(target=_pid, args=(app, told))
    child.start()
    child.join(SOON)

    assert {PerProcess.of(app)} == found
    assert Other.of(app) is not PerProcess.of(app)
    assert child.pid == told.get()
    eventually(child.close)
