"""Results as futures: what they hold, whoever reads them, and the threads that they cost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.backends.rpc import RPCBackend
from celery.result import allow_join_result

from celery_batch.client.results.result import BatchResult
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import LARGEST_VALUE
from celery_batch.streamer.redis_streamer import RequestFuture
from tests.services.eventually import eventually
from tests.services.fake_worker import FakeWorker
from tests.services.setup import emptied

SOON = 20.0


def _as_newer_pythons_do(source: Future[Any], target: asyncio.Future[Any]) -> None:
    """Copy a future's state as CPython 3.14 and later do, which ask it for no result."""
    if target.cancelled():
        return
    if source.cancelled():
        target.cancel()
    elif source._exception is not None:  # type: ignore[attr-defined]
        target.set_exception(source._exception)  # type: ignore[attr-defined]
    else:
        target.set_result(source._result)  # type: ignore[attr-defined]


@pytest.fixture(params=["this Python", "newer Pythons"])
def copying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have asyncio copy futures' states in one way or the other."""
    if request.param == "newer Pythons":
        monkeypatch.setattr(asyncio.futures, "_copy_future_state", _as_newer_pythons_do)


async def wrapped(future: Future[Any]) -> Any:
    """Await a future as coroutines do."""
    async with asyncio.timeout(SOON):
        return await asyncio.wrap_future(future)


def request_of(*results: BatchResult, patience: float | None = None) -> RequestFuture:
    """Return the future of a request for some items."""
    future = RequestFuture([*results], patience, "streamer")
    future.watch()
    return future


VALUES = {"small": [1, "a", None], "some": "x" * 9000, "not told": "x" * (LARGEST_VALUE + 1)}


@pytest.mark.usefixtures("copying")
@pytest.mark.parametrize("size", VALUES)
def test_a_future_holds_what_its_task_returned(background: FakeWorker, size: str) -> None:
    """Whoever reads a future's state finds the value there, as small or as large as it is."""
    results, value = background.ask_many(3), VALUES[size]
    futures = [results[0].future(), request_of(*results[1:])]
    for result in results:
        background.answer(result, value)
    late = [results[0].future(), request_of(*results[1:])]
    found = [asyncio.run(wrapped(future)) for future in (*futures, *late)]

    assert [value, [value, value]] * 2 == found


def test_a_future_fails_with_a_task_before_it_in_its_chain(background: FakeWorker) -> None:
    """A task whose predecessor failed never runs; who waits for it is told, as by `get`."""
    first = background.ask()
    future = background.ask(parent=first).future()
    background.answer(first, ValueError("no"), states.FAILURE)

    with pytest.raises(ValueError, match="no"):
        future.result(SOON)


@pytest.mark.usefixtures("copying")
def test_a_future_holds_what_its_task_failed_with(background: FakeWorker) -> None:
    """An error is in the future's state, too; of a request, that of the first item with one."""
    results = background.ask_many(3)
    futures = [results[1].future(), request_of(*results)]
    background.answer(results[2], KeyError("third"), states.FAILURE)
    background.answer(results[1], ValueError("second"), states.FAILURE)
    background.answer(results[0], 1)
    for future in futures:
        with pytest.raises(ValueError, match="second"):
            asyncio.run(wrapped(future))

    assert ["second", "second"] == [str(future.exception()) for future in futures]


@pytest.mark.usefixtures("copying")
def test_a_future_of_an_ignored_result_holds_nothing(background: FakeWorker) -> None:
    """What nobody stores is None, and there at once."""
    result = background.ask()
    result.ignored = True

    assert None is asyncio.run(wrapped(result.future()))
    assert [] == asyncio.run(wrapped(request_of()))


@pytest.mark.parametrize("kind", ["result", "request"])
def test_a_futures_time_is_spent_once(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A future that was waited for has its value: nobody waits for that again."""
    again: list[Any] = []
    get = BatchResult.get
    monkeypatch.setattr(
        BatchResult,
        "get",
        lambda self, *args, **more: again.append(args) or get(self, *args, **more),
    )
    result = background.ask()
    future = result.future() if kind == "result" else request_of(result, patience=SOON)
    background.answer(result, 1)
    value = future.result(SOON)

    assert (1 if kind == "result" else [1]) == value
    assert None is future.exception(SOON)
    assert [] == again


@pytest.mark.parametrize("kind", ["result", "request"])
def test_what_was_told_and_is_gone_is_given_up_in_time(background: FakeWorker, kind: str) -> None:
    """A large value that has expired before it was read is waited for no longer than one says."""
    result = background.ask()
    future = result.future() if kind == "result" else request_of(result)
    background.store(result, VALUES["not told"])
    key = background.app.backend.get_key_for_task(result.id)
    value = background.redis.getdel(key)
    result.pending_result.registry.deliver([(result.id, b"")])
    with pytest.raises(TimeoutError):
        future.result(0.1)
    with pytest.raises(TimeoutError):
        future.exception(0.1)
    background.redis.set(key, value)

    assert future.result(SOON) in (VALUES["not told"], [VALUES["not told"]])


@pytest.mark.parametrize("kind", ["result", "request"])
def test_futures_on_other_backends_share_a_thread(redis_server: RedisServer, kind: str) -> None:
    """However many futures wait where nobody tells of results, one thread asks for all of them."""
    emptied(redis_server)
    app = Celery("other", broker=redis_server.url, set_as_current=False)
    app.conf.result_backend = "cache+memory://"
    results = [BatchResult(str(uuid4()), app=app) for _ in range(100)]
    before = set(threading.enumerate())
    futures = [each.future() if kind == "result" else request_of(each) for each in results]
    new = {each for each in set(threading.enumerate()) - before if "celery-batch" in each.name}
    for number, result in enumerate(results):
        state = states.FAILURE if number == 7 else states.SUCCESS
        value = ValueError("bad") if number == 7 else number
        app.backend.store_result(result.id, value, state)
    done, _ = wait(futures, timeout=60)
    good = [future.result() for future in futures if future.exception() is None]

    assert len(new) == 1
    assert len(done) == 100
    assert 99 == len(good)
    assert "bad" == str(futures[7].exception())


@pytest.mark.parametrize("kind", ["result", "request"])
def test_who_waits_for_a_cancelled_future_is_told(background: FakeWorker, kind: str) -> None:
    """To cancel a future, once or twice, ends the wait of those who wait for several."""
    result = background.ask()
    future = result.future() if kind == "result" else request_of(result)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, [future], SOON)
        cancelled = [future.cancel(), future.cancel()]
        background.answer(result, 1)
        done, _ = waiting.result(2 * SOON)

    assert [True, True] == cancelled
    assert {future} == done == wait([future], SOON).done
    assert 1 == result.get(timeout=SOON)


def test_a_future_that_is_dropped_is_asked_for_no_more(redis_server: RedisServer) -> None:
    """A cancelled future, and a request that nobody holds, leave nothing behind."""
    emptied(redis_server)
    app = Celery("other", broker=redis_server.url, set_as_current=False)
    app.conf.result_backend = "cache+memory://"
    asked: list[str] = []
    results = [BatchResult(str(uuid4()), app=app) for _ in range(2)]
    for result in results:
        ready = result.ready
        result.ready = lambda ready=ready, name=result.id: asked.append(name) or ready()
    cancelled, held = results[0].future(), results[1].future()
    dropped = request_of(results[0])
    eventually(lambda: asked[10])
    cancelled.cancel()
    del dropped
    asked.clear()
    eventually(lambda: asked[3])
    app.backend.store_result(results[1].id, 1, states.SUCCESS)

    assert results[0].id not in asked[2:]
    assert 1 == held.result(SOON)


@pytest.fixture
def over_rpc(broker: str) -> Any:
    """An app whose results are messages to the thread that asked."""
    app = Celery("asker", broker=broker, backend="rpc://", set_as_current=False)
    yield app
    app.close()


def answer_over(app: Celery, result: BatchResult, value: Any) -> None:
    """Answer over RPC, as a worker does."""
    request = SimpleNamespace(reply_to=app.thread_oid, correlation_id=result.id)
    app.backend.store_result(result.id, value, states.SUCCESS, request=request)


def test_looks_over_rpc_keep_no_loop_waiting(
    over_rpc: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results over RPC are looked for beside the loop, at the address of who has asked."""
    lookers: set[threading.Thread] = set()
    own = RPCBackend.get_task_meta

    def look(self: Any, *args: Any) -> Any:
        lookers.add(threading.current_thread())
        return own(self, *args)

    monkeypatch.setattr(RPCBackend, "get_task_meta", look)
    results = [BatchResult(str(uuid4()), app=over_rpc) for _ in range(20)]
    held = results[0].future()

    async def ask() -> list[Any]:
        """Await all of them, and have them answered meanwhile."""
        waiting = [asyncio.create_task(_awaited(result)) for result in results]
        last = [asyncio.create_task(_last_state(results[0]))]
        await asyncio.to_thread(eventually, lambda: next(iter(lookers)))
        for number, result in enumerate(results):
            answer_over(over_rpc, result, number)
        return await asyncio.gather(*waiting, *last)

    assert [*range(20), states.SUCCESS] == asyncio.run(ask())
    assert 0 == held.result(SOON)
    assert threading.main_thread() not in lookers


async def _awaited(result: BatchResult) -> Any:
    async with asyncio.timeout(SOON):
        return await result


async def _last_state(result: BatchResult) -> str:
    async with asyncio.timeout(SOON):
        return [state async for state in result.iter_states()][-1]


@pytest.mark.parametrize("ask", [_awaited, _last_state])
def test_blocking_jobs_of_the_users_hold_up_no_answer(
    redis_server: RedisServer, ask: Callable[[BatchResult], Any]
) -> None:
    """Results are looked for though what the application runs in the loop's threads blocks."""
    app = Celery("other", broker=emptied(redis_server), set_as_current=False)
    app.conf.update(result_backend="cache+memory://")
    result = BatchResult(str(uuid4()), app=app)
    validator = threading.Event()

    async def wait_for_it() -> Any:
        """Await a result while the loop's only other thread is busy."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocking = loop.run_in_executor(None, validator.wait, 60)
        loop.call_later(0.1, app.backend.store_result, result.id, "done", states.SUCCESS)
        try:
            return await ask(result)
        finally:
            validator.set()
            await blocking

    with allow_join_result():
        answer = asyncio.run(wait_for_it())

    assert answer in ("done", states.SUCCESS)
