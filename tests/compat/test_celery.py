"""A cold shutdown's signal is handled where the main thread waits, and soon in any case."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace

import pytest
from celery.worker.request import Request
from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_batch.compat.celery import check_before_processing, defer_signals, is_waiting
from celery_batch.processes.managed_process import wait_until


@pytest.fixture
def handled() -> Iterator[list[str]]:
    """Handlers with Celery's names, which note what the main thread did."""
    places: list[str] = []

    def note(kind: str, frame: FrameType | None) -> None:
        places.append(f"{kind} {'waiting' if is_waiting(frame) else 'busy'}")

    def worker_Cold(_number: int, frame: FrameType | None) -> None:  # noqa: N802 (Celery's name)
        note("cold", frame)

    def worker_Warm(_number: int, frame: FrameType | None) -> None:  # noqa: N802 (Celery's name)
        note("warm", frame)
        signal.signal(signal.SIGINT, worker_Cold)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT)}
    signal.signal(signal.SIGQUIT, worker_Cold)
    signal.signal(signal.SIGINT, worker_Warm)
    defer_signals()
    yield places
    for number, handler in before.items():
        signal.signal(number, handler)


def run_loop(hub: Hub, places: list[str], number: int) -> None:
    """Run the event loop until so many signals have been handled."""
    reading, writing = os.pipe()
    hub.add_reader(reading, lambda: None)
    loop = hub.loop
    while len(places) < number:
        next(loop)
    hub.close()
    os.close(reading)
    os.close(writing)


def test_waits_for_the_event_loop_to_wait(handled: list[str]):
    """A signal that comes while the loop works is handled when the loop waits."""
    hub = Hub()
    hub.call_soon(signal.raise_signal, signal.SIGQUIT)
    run_loop(hub, handled, 1)

    assert ["cold waiting"] == handled


def test_second_interrupt_waits_too(handled: list[str]):
    """A warm one is handled at once; the cold one that follows is deferred."""
    hub = Hub()
    hub.call_soon(signal.raise_signal, signal.SIGINT)
    hub.call_later(0.05, signal.raise_signal, signal.SIGINT)
    run_loop(hub, handled, 2)

    assert ["warm busy", "cold waiting"] == handled


def test_no_signal_waits_for_ever(handled: list[str]):
    """If the main thread never waits it is handled all the same, and the next one at once."""
    signal.raise_signal(signal.SIGQUIT)
    before = list(handled)
    wait_until(lambda: "" if handled else "nothing", [], what="the handler", timeout=60)
    signal.raise_signal(signal.SIGQUIT)

    assert [] == before
    assert ["cold busy", "cold busy"] == handled


def test_frame_outside_of_loops_does_not_wait():
    """A frame outside of the known loops counts as work."""
    assert not is_waiting(sys._getframe())
    assert not is_waiting(None)


def test_many_requests_that_others_have_taken_free_their_process_at_once():
    """As many as wait for a process are dropped in one loop: their calls do not nest."""
    semaphore, processed = LaxBoundedSemaphore(1), list[Request]()
    controller = SimpleNamespace(_process_task=processed.append, _quick_release=semaphore.release)
    first, *taken, last = (Request.__new__(Request) for _ in range(2000))
    for number, request in enumerate((first, *taken, last)):
        request._request_dict, request._context, request.id = {}, None, str(number)
    check_before_processing(controller, set(taken).__contains__)
    for request in (first, *taken, last):
        semaphore.acquire(controller._process_task, request)
    semaphore.release()

    assert [first, last] == processed
