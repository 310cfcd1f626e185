"""`max_queue` and callers that all come at the same instant."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_batch import BrokerUnreachable, QueueFull
from celery_batch.client.queue_depth import DepthPoller
from celery_batch.processes.managed_process import wait_until
from tests.client.conftest import Sender
from tests.client.test_max_queue import count, known, limited


def test_a_burst_after_a_quiet_time_is_held_to_the_limit(sender: Callable[..., Sender]) -> None:
    """Threads that call at the same instant, before a measurement, fill the queue and no more."""
    here = sender()
    task = limited(here)
    for _ in range(3):
        until_asleep(here)
        assert 10 == bursts(task, 40, 10)
        assert 10 == count(here)
        here.taken()


def test_a_queue_is_measured_until_it_is_empty(sender: Callable[..., Sender]) -> None:
    """A call after a quiet time is not refused for what has left in the meantime."""
    here = sender()
    task = limited(here)
    assert 10 == bursts(task, 20, 10)
    known(task, 10)
    here.taken()
    until_asleep(here)

    task.delay("the first after it")


def until_asleep(here: Sender) -> None:
    """Wait until the last call is so long ago that the queue is not measured any more."""
    poller = DepthPoller.of(here.app)
    wait_until(lambda: "" if poller._is_asleep else "it measures", [], what="quiet", timeout=60)


def bursts(task: Any, calls: int, enough: int) -> int:
    """Call until enough are admitted, or more; return how many were."""
    admitted = 0
    for _ in range(10):  # on a busy machine none of the first may be
        admitted += burst(task, calls)
        if admitted >= enough:
            break
    return admitted


def burst(task: Any, calls: int) -> int:
    """Call a task in so many threads at once; return how many were admitted."""
    start, admitted = threading.Barrier(calls), []

    def call(number: int) -> None:
        start.wait()
        # On a busy machine the first measurement may come too late to know that there is none.
        with suppress(QueueFull, BrokerUnreachable):
            admitted.append(task.apply_async((number,), ignore_result=True))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(calls)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return len(admitted)
