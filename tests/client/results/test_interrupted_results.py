"""What ends or begins within the registry waits for nobody: finalisers and signal handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.results.pending import PendingResults
from celery_batch.client.results.waiting import wait_until_ended
from tests.services.fake_worker import FakeWorker

SOON = 20.0

#: Seconds after which a thread is taken to hang.
HANGS = 40.0


def iterating(background: FakeWorker, results: list[Any]) -> Callable[[], object]:
    """Iterate over a group; return what ends it."""
    arrivals = background.app.GroupResult("group", results).iter_native(timeout=SOON)
    background.answer(results[0], 1)
    next(arrivals)
    return arrivals.close


def awaiting(_background: FakeWorker, results: list[Any]) -> Callable[[], object]:
    """Await a result; return what ends it."""

    async def begin() -> Callable[[], object]:
        """Go to where it waits."""
        waiting = wait_until_ended(results[0])
        waiting.send(None)
        return waiting.close

    return asyncio.run(begin())


def future(_background: FakeWorker, results: list[Any]) -> Callable[[], object]:
    """Make a future of a result; return what ends it."""
    return results[0].future().cancel


@pytest.mark.parametrize("begin", [iterating, awaiting, future])
def test_finaliser_takes_no_lock(
    background: FakeWorker, begin: Callable[..., Callable[[], object]]
):
    """Whoever gives up in the registry, as the garbage collector does, is gone after."""
    pending = PendingResults.of(background.app)
    results = background.ask_many(3)
    thread = threading.Thread(target=begin(background, results))
    with pending._lock:
        thread.start()
        thread.join(HANGS)
        hangs = thread.is_alive()
    thread.join()
    pending.poll_all()

    assert not hangs
    assert [] == pending.take_due(10)
    assert not any(result.pending_result.callbacks for result in results)


def test_signal_handler_may_ask_and_wait(background: FakeWorker):
    """Who interrupts a thread that is in the registry can ask, wait and listen there."""
    pending, listener = PendingResults.of(background.app), background.listener
    asked: list[Any] = []

    def interrupted() -> None:
        """Be in the registry, and ask."""
        guards = [thread._guard for thread in listener._threads.values()]
        with pending._lock, guards[0], guards[1]:
            result = background.ask()
            with pytest.raises(CeleryTimeoutError):
                result.get(timeout=0.0)
            asked.append((result, result.future()))
            listener.check_threads()

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(HANGS)

    assert not thread.is_alive()
    result, waiting = asked[0]
    background.answer(result, 1)
    assert 1 == waiting.result(SOON)
