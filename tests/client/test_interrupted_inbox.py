"""What ends or begins in the inbox's own midst waits for nobody: finalisers and signal handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.arrival import arrived
from celery_batch.client.inbox import inbox_of
from tests.services.teller import Teller

SOON = 20.0

#: Seconds after which a thread is taken to hang.
HANGS = 5.0


def iterating(teller: Teller, results: list[Any]) -> Callable[[], object]:
    """Iterate over a group; return what ends it."""
    arrivals = teller.app.GroupResult("group", results).iter_native(timeout=SOON)
    teller.answer(results[0], 1)
    next(arrivals)
    return arrivals.close


def awaiting(_teller: Teller, results: list[Any]) -> Callable[[], object]:
    """Await a result; return what ends it."""

    async def begin() -> Callable[[], object]:
        """Go to where it waits."""
        waiting = arrived(results[0])
        waiting.send(None)
        return waiting.close

    return asyncio.run(begin())


def future(_teller: Teller, results: list[Any]) -> Callable[[], object]:
    """Make a future of a result; return what ends it."""
    return results[0].future().cancel


@pytest.mark.parametrize("begin", [iterating, awaiting, future])
def test_finaliser_takes_no_lock(teller: Teller, begin: Callable[..., Callable[[], object]]):
    """Whoever gives up in the midst of the inbox, as the garbage collector does, is gone after."""
    inbox = inbox_of(teller.app)
    results = teller.ask_many(3)
    thread = threading.Thread(target=begin(teller, results))
    with inbox._lock:
        thread.start()
        thread.join(HANGS)
        hangs = thread.is_alive()
    thread.join()
    inbox.look_again()

    assert not hangs
    assert [] == inbox.take(10)
    assert not any(result.reply.watchers for result in results)


def test_signal_handler_may_ask_and_wait(teller: Teller):
    """Who interrupts a thread that is in the inbox can ask, wait and listen there."""
    inbox, listener = inbox_of(teller.app), teller.listener
    asked: list[Any] = []

    def interrupted() -> None:
        """Be in the inbox, and ask."""
        with inbox._lock, listener._guard:
            result = teller.ask()
            with pytest.raises(CeleryTimeoutError):
                result.get(timeout=0.0)
            asked.append((result, result.future()))
            listener.check()

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(HANGS)

    assert not thread.is_alive()
    result, waiting = asked[0]
    teller.answer(result, 1)
    assert 1 == waiting.result(SOON)
