"""A cold shutdown's signal is handled where the main thread waits, and soon in any case."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from kombu.asynchronous import Hub

from celery_batch.compat.signals import defer_signals, defer_signals_while
from celery_batch.processes.managed_process import wait_until


@pytest.fixture
def handled() -> Iterator[list[str]]:
    """Handlers by Celery's names, which note where they found us."""
    places: list[str] = []

    def note(kind: str, frame: FrameType | None) -> None:
        places.append(f"{kind} {'waiting' if defer_signals_while(frame) else 'busy'}")

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
    """A signal that finds the loop at work is handled when the loop waits."""
    hub = Hub()
    hub.call_soon(signal.raise_signal, signal.SIGQUIT)
    run_loop(hub, handled, 1)

    assert ["cold waiting"] == handled


def test_second_interrupt_waits_too(handled: list[str]):
    """A warm one is handled at once; the cold one that it puts in its place is put off."""
    hub = Hub()
    hub.call_soon(signal.raise_signal, signal.SIGINT)
    hub.call_later(0.05, signal.raise_signal, signal.SIGINT)
    run_loop(hub, handled, 2)

    assert ["warm busy", "cold waiting"] == handled


def test_no_signal_waits_for_ever(handled: list[str]):
    """Where the main thread never waits it is handled all the same, and the next one at once."""
    signal.raise_signal(signal.SIGQUIT)
    before = list(handled)
    wait_until(lambda: "" if handled else "nothing", [], what="the handler", timeout=60)
    signal.raise_signal(signal.SIGQUIT)

    assert [] == before
    assert ["cold busy", "cold busy"] == handled


def test_work_is_no_wait():
    """A frame outside any loop is at work, whatever it does."""
    assert not defer_signals_while(sys._getframe())
    assert not defer_signals_while(None)
