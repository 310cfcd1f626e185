"""Whatever a call asks for, and wherever its result is kept, it returns what can be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.app.backends import by_url
from celery.app.task import Context
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from kombu import pools

from celery_batch import BatchTask
from celery_batch.client.results.result import BatchResult
from tests.client.conftest import Sender
from tests.client.publish.test_sending import warmed

SOON = 20.0

#: Each way to ask, and the results that it gives.
WAYS: dict[str, Callable[[Any], list[Any]]] = {
    "delay": lambda task: [task.delay("a")],
    "countdown": lambda task: [task.apply_async(("a",), countdown=1)],
    "ignored": lambda task: [task.apply_async(("a",), ignore_result=True)],
    "positional": lambda task: [task.apply_async(("a",), None, "an-id")],
    "many": lambda task: task.delay_many(["a", "b"]),
    "coroutine": lambda task: [asyncio.run(task.adelay("a"))],
    "chunk": lambda task: [task.delay_rows(["a", "b"])],
    "signature": lambda task: [task.s("a").apply_async()],
    "group": lambda task: list(group(task.s(each) for each in "ab").apply_async()),
    "chain": lambda task: [chain(task.s("a"), task.s()).apply_async()],
    "id": lambda task: [task.AsyncResult("of-another-process")],
}


@pytest.fixture
def asker() -> Iterator[Callable[..., Any]]:
    """Make batch tasks of apps without a Redis."""
    made: list[Celery] = []

    def make(backend: str = "cache+memory://", base: Any = BatchTask) -> Any:
        app = Celery("asker", broker="memory://", backend=backend, set_as_current=False)
        made.append(app)

        @app.task(base=base, name=f"asked-{len(made)}")
        def ask(text: list[Any]) -> list[Any]:
            return text

        app.finalize()
        return ask

    yield make
    for app in made:
        app.close()
    pools.reset()


async def awaited(result: Any) -> Any:
    """Await a result, but not for ever."""
    async with asyncio.timeout(SOON):
        return await result


@pytest.mark.parametrize("way", WAYS)
def test_every_way_returns_what_can_be_awaited(asker: Callable[..., Any], way: str) -> None:
    """Without a listener, too, a call returns a `BatchResult`, first of its kind or not."""
    task = asker()
    for _ in range(2):
        results = WAYS[way](task)

        assert [BatchResult] * len(results) == [type(each) for each in results]


@pytest.mark.parametrize("conf", [{}, {"batch_bulk": False}], ids=["bulk", "single"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_on_redis_does_too(
    sender: Callable[..., Sender], way: str, conf: dict[str, Any]
) -> None:
    """With `batch_bulk` on or off, a call returns a `BatchResult`."""
    here = warmed(sender(**conf))
    results = WAYS[way](here.task)

    assert [BatchResult] * len(results) == [type(each) for each in results]


def test_result_kept_by_another_backend_is_found(asker: Callable[..., Any]) -> None:
    """Where nobody tells us, a call's result is found by await, future and get."""
    task = asker()
    result, late = task.delay("a"), task.delay("b")
    future = late.future()
    for each in (result, late):
        task.backend.store_result(each.id, 1, "SUCCESS")

    assert [1, 1, 1] == [asyncio.run(awaited(result)), future.result(SOON), result.get(SOON)]


def test_result_over_rpc_belongs_to_who_asked(asker: Callable[..., Any]) -> None:
    """RPC's answers come to the thread that has asked, wherever they are waited for."""
    task = asker("rpc://")
    asked = [task.delay("a") for _ in range(3)] + [asyncio.run(task.adelay("a"))]
    for each in asked:
        to = Context(reply_to=each.backend.oid, correlation_id=each.id)
        each.backend.store_result(each.id, 1, "SUCCESS", request=to)
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(asked[0].get, SOON).result(SOON)

    assert [1, 1] == [elsewhere, asked[1].future().result(SOON)]
    assert [1, 1] == [asyncio.run(awaited(each)) for each in asked[2:]]


def test_ignored_result_is_done_at_once(
    sender: Callable[..., Sender], asker: Callable[..., Any]
) -> None:
    """There is nothing to wait for, however one waits."""
    for task in (warmed(sender()).task, asker()):
        result = task.apply_async(("a",), ignore_result=True)
        future = result.future()

        assert future.done()
        assert (None, None) == (future.result(SOON), future.exception(SOON))
        assert (None, None) == (asyncio.run(awaited(result)), result.get(SOON))


@pytest.mark.parametrize("kept", ["memory", "redis"])
@pytest.mark.parametrize("way", ["delay", "countdown", "many", "group"])
def test_result_kept_elsewhere_is_looked_for_there(
    sender: Callable[..., Sender], kept: str, way: str
) -> None:
    """A task with a result backend of its own is told by nobody, and waits for nobody's word."""
    here = sender()
    url = here.app.conf.result_backend
    other = url[:-1] + "3" if kept == "redis" else "cache+memory://"
    backend, url = by_url(other, here.app.loader)
    task = here.make("own", backend=backend(app=here.app, url=url))
    for _ in range(2):
        results = [WAYS[way](task)[-1] for _ in range(3)]
        messages = [each for found in here.taken().values() for each in found]
        future = results[0].future()
        for each in results:
            task.backend.store_result(each.id, 1, "SUCCESS")

        assert not any(message["headers"].get("batch_reply") for message in messages)
        assert [1, 1] == [future.result(SOON), asyncio.run(awaited(results[1]))]
        assert 1 == results[2].get(SOON)


def test_another_base_s_result_is_returned(
    sender: Callable[..., Sender], asker: Callable[..., Any]
) -> None:
    """A task class that has a result of its own keeps it."""

    class Both(BatchTask, AbortableTask):
        abstract = True

    here = sender()
    for task in (asker(base=Both), here.make("both", base=Both)):
        for _ in range(2):
            result = task.delay("a")

            assert AbortableAsyncResult is type(result)
        result.abort()

        assert result.is_aborted()
