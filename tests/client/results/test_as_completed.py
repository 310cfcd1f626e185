"""Results as their tasks end, for threads and for coroutines."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, EagerResult, denied_join_result

from celery_batch import as_completed
from celery_batch.client.results.pending import PendingResults
from tests.services.eventually import eventually
from tests.services.fake_worker import FakeWorker

SOON = 20.0

HOWS = pytest.mark.parametrize("how", ["for", "async for"])


def all_of(how: str, results: Any, timeout: float | None = SOON, ended: Any = None) -> list[Any]:
    """Return results in the order in which they come; note them in a list meanwhile."""
    ended = [] if ended is None else ended

    async def iterate() -> None:
        """Note them in a coroutine."""
        async for result in as_completed(results, timeout):
            ended.append(result)

    if how == "async for":
        asyncio.run(iterate())
    else:
        for result in as_completed(results, timeout):
            ended.append(result)
    return ended


@HOWS
def test_results_come_in_the_order_of_their_ends(background: FakeWorker, how: str):
    """Whatever the order of the calls, results are yielded as their tasks end, failed or not."""
    results, seen = background.ask_many(4), []
    with ThreadPoolExecutor(1) as pool:
        iterating = pool.submit(all_of, how, results, SOON, seen)
        for number, n in enumerate((2, 0, 3, 1)):
            state = states.FAILURE if n == 3 else states.SUCCESS
            background.answer(results[n], ValueError("no") if n == 3 else n, state)
            eventually(lambda number=number: seen[number])
        found = iterating.result(SOON)

    assert [results[n] for n in (2, 0, 3, 1)] == found
    assert [2, 0, 1] == [result.get() for result in found if result.successful()]


@HOWS
def test_ordinary_results_and_those_that_have_ended_come_too(background: FakeWorker, how: str):
    """Celery's own results, eager ones and ignored ones stand beside those that are received."""
    plain = AsyncResult(str(uuid4()), app=background.app)
    eager = EagerResult("eager", 1, states.SUCCESS)
    told, ignored, ended = background.ask_many(3)
    ignored.ignored = True
    background.answer(ended, 1)
    results, seen = [plain, eager, told, ignored, ended], []
    with ThreadPoolExecutor(1) as pool:
        iterating = pool.submit(all_of, how, results, SOON, seen)
        eventually(lambda: seen[2])
        background.store(plain, 1)
        eventually(lambda: seen[3])
        background.answer(told, 1)
        found = iterating.result(SOON)

    assert {eager.id, ignored.id, ended.id} == {result.id for result in found[:3]}
    assert [plain, told] == found[3:]


@HOWS
def test_on_other_backends_one_thread_asks(how: str):
    """Where no listener receives results, they are yielded all the same."""
    app = Celery("other", broker="memory://", backend="cache+memory://", set_as_current=False)
    results = [AsyncResult(str(uuid4()), app=app) for _ in range(20)]
    for number, result in enumerate(results):
        app.backend.store_result(result.id, number, states.SUCCESS)
    found = all_of(how, results)
    app.close()

    assert {result.id for result in results} == {result.id for result in found}


@HOWS
def test_what_does_not_end_in_time_is_celery_s_timeout(background: FakeWorker, how: str):
    """When the time is over that is an error, and nothing is left of the wait."""
    done, missing = background.ask_many(2)
    background.answer(done, 1)
    eventually(lambda: done.pending_result.value[0])  # it may take longer than the timeout
    seen: list[Any] = []
    began = time.monotonic()
    with pytest.raises(CeleryTimeoutError):
        all_of(how, [missing, done], 0.3, seen)
    took = time.monotonic() - began
    registry = PendingResults.of(background.app)

    assert [done] == seen
    assert 0.3 <= took < SOON
    assert not registry.is_awaited()


@HOWS
def test_who_stops_early_leaves_nothing_behind(background: FakeWorker, how: str):
    """A loop that is left, or a coroutine that is cancelled, awaits nothing any more."""
    first, *others = background.ask_many(20)
    background.answer(first, 1)

    async def stop() -> Any:
        """Take one in a coroutine, and cancel the wait for the next."""
        iterator = aiter(as_completed([first, *others]))
        found = await anext(iterator)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(iterator)
        return found

    found = (
        asyncio.run(stop()) if how == "async for" else next(iter(as_completed([first, *others])))
    )

    assert first is found
    eventually(lambda: 1 / (not PendingResults.of(background.app).is_awaited()))


@HOWS
def test_failed_predecessor_ends_a_chain(background: FakeWorker, how: str):
    """A task that will never run, because one before it failed, has ended."""
    first = background.ask()
    last = background.ask(parent=first)
    background.answer(first, ValueError("no"), states.FAILURE)

    assert [last] == all_of(how, [last])
    with pytest.raises(ValueError, match="no"):
        last.get(timeout=SOON)


@HOWS
def test_tasks_do_not_wait_for_others(background: FakeWorker, how: str):
    """Inside a task, to wait for many is refused as to wait for one is."""
    results = background.ask_many(1)
    with denied_join_result(), pytest.raises(RuntimeError, match="Never call"):
        all_of(how, results)


def test_event_loop_goes_on_meanwhile(background: FakeWorker):
    """A coroutine that waits for many keeps no other from running."""
    results = background.ask_many(100)

    async def iterate() -> int:
        """Iterate while another coroutine counts."""
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        answering = threading.Timer(0.2, lambda: [background.answer(each, 1) for each in results])
        answering.start()
        assert {result.id for result in results} == {
            result.id async for result in as_completed(results, SOON)
        }
        ticking.cancel()
        answering.join()  # results come before it has heard that they were sent
        return ticks

    assert asyncio.run(iterate()) > 5


def test_anything_but_results_is_refused():
    """Items, for example, which have no end to wait for."""
    with pytest.raises(TypeError, match="takes results of calls, got 1"):
        as_completed([1, 2])
    with pytest.raises(TypeError, match=r"a list of results; for one write \[result\]"):
        as_completed(AsyncResult("one", app=Celery(set_as_current=False)))
