"""A batch task's result is Celery's in all that one can do with it, and can be awaited."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import states
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import (
    AsyncResult,
    EagerResult,
    GroupResult,
    denied_join_result,
    result_from_tuple,
)
from kombu.exceptions import DecodeError

from celery_batch.client.results.pending import PendingResults
from celery_batch.client.results.result import BatchResult
from celery_batch.processes.managed_process import wait_until
from tests.services.fake_worker import FakeWorker

SOON = 20.0


def soon(ready: Callable[[], object], what: str) -> None:
    """Return when something is true."""
    wait_until(lambda: "" if ready() else "not yet", [], what=what, timeout=SOON)


def failure() -> Exception:
    """Return an error with a traceback's text, as a worker has one."""
    return ValueError("a bad item", 7)


TRACEBACK = 'Traceback (most recent call last):\n  File "model.py", line 3, in predict\nValueError'

OUTCOMES = {
    "value": ({"x": [1, "two", None]}, states.SUCCESS, None),
    "nothing": (None, states.SUCCESS, None),
    "error": (failure(), states.FAILURE, TRACEBACK),
    "revoked": (TaskRevokedError("terminated"), states.REVOKED, None),
}


def facts(result: Any) -> dict[str, Any]:
    """Return all that a result says of its task."""
    value = result.result
    return {
        "value": (type(value), getattr(value, "args", value)),
        "state": (result.state, result.status, result.info == value or str(result.info)),
        "is": (result.ready(), result.successful(), result.failed()),
        "more": (result.traceback, result.children, result.date_done, result.name),
    }


def ending(result: Any, **options: Any) -> Any:
    """Return how a get ends: its value or its error."""
    try:
        return result.get(timeout=SOON, **options)
    except Exception as error:  # noqa: BLE001
        return type(error), error.args, type(error.__cause__)


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("told", [True, False], ids=["told", "found"])
def test_ends_as_celery_s_result(background: FakeWorker, outcome: str, told: bool):  # noqa: FBT001
    """Value, error, state and all else are what Celery's own result says."""
    value, state, traceback = OUTCOMES[outcome]
    ours, again = background.ask_many(2)
    again.pending_result = PendingResults.of(background.app).get(ours.id)
    background.store(ours, value, state, traceback=traceback)
    if told:
        background.notify([ours])
        soon(lambda: ours.pending_result.value, "reply")
    stock = background.app.AsyncResult(ours.id)
    called: list[list[Any]] = [[], []]
    ends = [
        [
            ending(each, callback=lambda *a, n=n: called[n].append(a), propagate=propagate)
            for propagate in (True, False)
        ]
        for n, each in enumerate((stock, ours))
    ]

    assert str(ends[0]) == str(ends[1])
    assert str(called[0]) == str(called[1])
    assert str(facts(stock)) == str(facts(ours))


def test_remote_traceback_is_raised(background: FakeWorker):
    """With task_remote_tracebacks the error carries the worker's traceback, as in Celery."""
    background.app.conf.task_remote_tracebacks = True
    result = background.ask()
    background.answer(result, failure(), states.FAILURE, traceback=TRACEBACK)
    with pytest.raises(ValueError, match="a bad item") as caught:
        result.get(timeout=SOON)

    assert "model.py" in str(caught.traceback[-1].path)


def test_get_gives_up_in_time(background: FakeWorker):
    """A get that takes too long raises Celery's TimeoutError, and leaves nothing behind."""
    result = background.ask()
    pending = PendingResults.of(background.app)
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.05)
    with pytest.raises(CeleryTimeoutError):
        result.get(0.01, True, 0.1)
    pending.poll_all()

    assert ([], []) == (pending.take_due(10), result.pending_result.callbacks)
    assert not background.app.backend._pending_results[0]


def test_a_get_that_blocks_an_event_loop_is_warned_of_once(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch
):
    """All coroutines stand still meanwhile; the warning names what to await instead."""
    monkeypatch.setattr("celery_batch.client.results.waiting._has_warned", False)
    first, second, *members = background.ask_many(4)
    group = GroupResult("g", members, app=background.app)
    background.answer(first, 1)

    async def block() -> None:
        """Block the loop."""
        assert 1 == first.get(timeout=SOON)  # is there, and blocks nothing
        with (
            pytest.warns(RuntimeWarning, match="use `await result` in place") as caught,
            pytest.raises(CeleryTimeoutError),
        ):
            second.get(timeout=0.01)
        assert __file__ == caught[0].filename
        with pytest.raises(CeleryTimeoutError):
            group.get(timeout=0.01)

    soon(lambda: first.pending_result.value, "reply")
    asyncio.run(block())


def test_get_without_time_looks_once(background: FakeWorker, monkeypatch: pytest.MonkeyPatch):
    """A get that may not wait returns what is stored, even if nobody told of it."""
    result = background.ask()
    background.store(result, 1)

    async def look() -> Any:
        """Look in an event loop, which that does not block."""
        return result.get(timeout=0)

    monkeypatch.setattr("celery_batch.client.results.waiting._has_warned", False)
    with warnings.catch_warnings(action="error"):
        assert 1 == asyncio.run(look())


def test_get_calls_back_while_it_waits(background: FakeWorker):
    """on_interval is called about once a second, and what it raises ends the wait."""
    result = background.ask()

    def enough() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        result.get(on_interval=enough)


def test_get_with_on_message_hears_of_progress(background: FakeWorker):
    """Who wants to hear of every state is served in Celery's way."""
    result = background.ask()
    heard: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(result.get, SOON, on_message=lambda meta: heard.append(meta["status"]))
        soon(lambda: f"celery-task-meta-{result.id}" in background.subscribers(), "subscription")
        background.store(result, {"done": 1}, "PROGRESS")
        soon(lambda: heard, "progress")
        background.answer(result, 1)

        assert 1 == answer.result(SOON)
    assert ["PROGRESS", "SUCCESS"] == heard


def test_get_inside_a_task_is_refused(background: FakeWorker):
    """A task may not wait for another, unless it says so."""
    result = background.ask()
    background.answer(result, 1)
    with denied_join_result(), pytest.raises(RuntimeError, match="within a task"):
        result.get()
    with denied_join_result():
        value = result.get(disable_sync_subtasks=False, timeout=SOON)

    assert 1 == value


def test_state_before_the_end_is_asked_for(background: FakeWorker):
    """Until a task has ended its state is what is stored, as in Celery."""
    result = background.ask()
    seen = [result.state, result.ready(), result.result]
    background.store(result, {"done": 1}, "PROGRESS")
    seen += [result.state, result.info]
    background.answer(result, 1)
    soon(result.ready, "end")

    assert ["PENDING", False, None, "PROGRESS", {"done": 1}] == seen
    assert ("SUCCESS", 1) == (result.state, result.result)


def test_told_state_costs_no_round_trip(background: FakeWorker):
    """What has been told is not asked for again."""
    result = background.ask()
    background.answer(result, 1)
    soon(lambda: result.pending_result.value, "reply")
    gets = lambda: background.redis.info("commandstats")["cmdstat_get"]["calls"]  # noqa: E731
    before = gets()
    seen = [result.state, result.ready(), result.result, result.get(), result.children]

    assert ["SUCCESS", True, 1, 1, None] == seen
    assert before == gets()


def test_undecodable_value_is_the_caller_s_error(background: FakeWorker):
    """A stored value in a format that is not accepted raises where it is wanted, and only there."""
    result, other = background.ask_many(2)
    key = background.app.backend.get_key_for_task(result.id)
    background.redis.set(key, b"\x80\x04N.")
    background.notify([result])
    background.answer(other, 1)

    assert 1 == other.get(timeout=SOON)
    with pytest.raises(DecodeError):
        result.get(timeout=SOON)


def test_news_that_is_no_end_is_not_taken_for_one(background: FakeWorker):
    """Whoever tells of a task that still runs does not end anybody's wait."""
    result = background.ask()
    background.answer(result, {"done": 1}, "PROGRESS")
    soon(lambda: result.pending_result.value, "news")
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.1)
    background.answer(result, 1)

    assert 1 == result.get(timeout=SOON)


def test_forget_removes_the_result(background: FakeWorker):
    """A forgotten result is gone, here and in Redis, and a get waits in vain, as in Celery."""
    result = background.ask()
    background.answer(result, 1)
    result.get(timeout=SOON)
    result.forget()

    assert (0, "PENDING") == (
        background.redis.exists(f"celery-task-meta-{result.id}"),
        result.state,
    )
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.05)


def test_then_is_called_when_the_task_has_ended(background: FakeWorker):
    """A callback is called with the result, before or after, and kept with no other reference."""
    called: list[Any] = []
    early, late, dropped = background.ask_many(3)
    early.then(lambda result: called.append(("early", result.get())))
    background.answer(late, 2)
    late.get(timeout=SOON)
    late.then(lambda result: called.append(("late", result.get())))
    dropped.then(lambda result: called.append(("dropped", result.get())))
    identity = AsyncResult(dropped.id, app=background.app)
    del dropped
    background.answer(early, 1)
    background.answer(identity, 3)
    soon(lambda: len(called) == 3, "callbacks")

    assert {("late", 2), ("early", 1), ("dropped", 3)} == set(called)


def test_then_with_weak_is_forgotten_with_its_result(background: FakeWorker):
    """A weak callback does not keep its result, nor is it called without."""
    called: list[Any] = []
    kept, dropped = background.ask_many(2)
    for result in (kept, dropped):
        result.then(called.append, weak=True)
    identity = AsyncResult(dropped.id, app=background.app)
    del dropped, result
    background.answer(identity, 1)
    background.answer(kept, 1)
    soon(lambda: called, "callback")

    assert [kept] == called


def test_callback_may_wait_for_another_result(background: FakeWorker):
    """A callback that waits for a result of its own does not wait for itself."""
    first, second = background.ask_many(2)
    got: list[Any] = []
    first.then(lambda _: got.append(second.get(timeout=SOON)))
    background.answer(first, 1)
    background.store(second, 2)
    soon(lambda: got, "callback")

    assert [2] == got


def test_failing_callback_is_logged(background: FakeWorker, caplog: pytest.LogCaptureFixture):
    """A callback that fails harms no other result."""
    first, second = background.ask_many(2)
    first.then(lambda _: 1 / 0)
    with caplog.at_level(logging.ERROR):
        background.answer(first, 1)
        background.answer(second, 2)

        assert 2 == second.get(timeout=SOON)
    soon(lambda: "ZeroDivisionError" in caplog.text, "log")


def test_identity_is_celery_s(background: FakeWorker):
    """Results are equal by id, whatever their class, and survive copies and pickles."""
    result = background.ask(parent=AsyncResult("before", app=background.app))
    stock = AsyncResult(result.id, app=background.app, parent=result.parent)
    background.app.set_current()
    thawed = pickle.loads(pickle.dumps(result))  # noqa: S301 (our own)
    twin = copy.copy(result)
    background.answer(result, 1)

    assert [stock] * 3 == [result, thawed, twin]
    assert (hash(stock), str(stock)) == (hash(result), str(result))
    assert (stock.as_tuple(), stock.as_list()) == (result.as_tuple(), result.as_list())
    assert result.id == result
    assert "before" == thawed.parent.id
    assert [1, 1, 1] == [each.get(timeout=SOON) for each in (result, twin, thawed)]
    assert stock == result_from_tuple(result.as_tuple(), background.app)


def test_result_needs_an_id(background: FakeWorker):
    """A result without an id is an error, as in Celery."""
    with pytest.raises(ValueError, match="id"):
        BatchResult(None, app=background.app)


def test_error_before_it_in_a_chain_is_raised(background: FakeWorker):
    """Who waits for the end of a chain hears of a failure on the way, however he waits."""
    parent = background.ask()
    ends = [BatchResult(f"end-{n}", app=background.app, parent=parent) for n in range(4)]
    for end in ends[:2]:
        end.pending_result = background.listener.registry.expect(end.pending_result)

    async def wait_for(result: BatchResult) -> Any:
        """Await a result."""
        return await result

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ends[n].get) for n in (0, 2)]
        answers += [pool.submit(asyncio.run, wait_for(ends[n])) for n in (1, 3)]
        time.sleep(0.1)  # let them begin to wait; it holds as well if they do not
        background.store(parent, failure(), states.FAILURE)
        errors = [answer.exception(SOON) for answer in answers]

    assert [("a bad item", 7)] * 4 == [error.args for error in errors]
    with pytest.raises(CeleryTimeoutError):
        ends[0].get(timeout=0.05, follow_parents=False)


def test_cancelled_await_leaves_the_task_alone(background: FakeWorker):
    """Who gives up awaiting, by a timeout for example, can await again."""
    result = background.ask()
    pending = PendingResults.of(background.app)

    async def twice() -> tuple[bool, list[str], Any]:
        """Give up once, and await again."""
        try:
            async with asyncio.timeout(0.05):
                await result
        except TimeoutError:
            gave_up = True
        pending.poll_all()
        left = pending.take_due(10)
        background.answer(result, 1)
        return gave_up, left, await result

    assert (True, [], 1) == asyncio.run(twice())


def test_awaited_error_is_raised(background: FakeWorker):
    """What a task has failed with is raised where it is awaited."""
    result = background.ask()
    background.answer(result, failure(), states.FAILURE)

    async def wait_for_it() -> Any:
        """Await it."""
        return await result

    with pytest.raises(ValueError, match="a bad item"):
        asyncio.run(wait_for_it())


def test_result_of_another_process_can_be_awaited(background: FakeWorker):
    """A result that this process did not ask for is found in Redis, without blocking the loop."""
    foreign = BatchResult("foreign", app=background.app)

    async def store() -> None:
        """Store it once others have had their turns for a while."""
        for _ in range(20):
            await asyncio.sleep(0.01)
        background.store(foreign, 1)

    async def wait_for_it() -> Any:
        """Await it."""
        storing = asyncio.create_task(store())
        async with asyncio.timeout(SOON):
            value = await foreign
        await storing
        return value

    assert 1 == asyncio.run(wait_for_it())


def test_many_threads_wait(background: FakeWorker):
    """Sixty-four threads get their own results, and one that all of them want."""
    results = background.ask_many(64)
    shared = background.ask()
    ready = threading.Barrier(65)

    def work(n: int) -> Any:
        ready.wait(SOON)
        return results[n].get(timeout=SOON), shared.get(timeout=SOON)

    with ThreadPoolExecutor(64) as pool:
        answers = [pool.submit(work, n) for n in range(64)]
        ready.wait(SOON)
        for n, result in enumerate(results):
            background.answer(result, n)
        background.answer(shared, "all")

        assert [(n, "all") for n in range(64)] == [answer.result() for answer in answers]


def test_eager_result_is_another_class(background: FakeWorker):
    """What a task returns when it runs at once is Celery's, and is no result of ours."""
    assert not issubclass(BatchResult, EagerResult)
    assert background.app.AsyncResult is not BatchResult
