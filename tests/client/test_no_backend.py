"""Results of an app without a result backend, or with one that is away."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain, group
from kombu.exceptions import OperationalError

from celery_batch import BatchTask, ConfigurationError, as_completed
from celery_batch.processes.redis_server import RedisServer
from tests.client.conftest import Sender
from tests.services.eventually import eventually
from tests.services.servers.ports import quiet_port

#: Celery tries for 20 s.
_TRIED_ONCE_MORE = {"retry_policy": {"max_retries": 1, "interval_start": 0, "interval_max": 0.1}}


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A batch task whose app has no result backend."""
    monkeypatch.delenv("CELERY_RESULT_BACKEND", raising=False)
    with Celery("silent", broker="memory://", set_as_current=False) as app:
        yield app.task(base=BatchTask, name="double")(_same)


def _same(x: list[int]) -> list[int]:
    return x


async def _awaited(result: Any) -> Any:
    return await result


async def _first_state(result: Any) -> Any:
    return await anext(result.iter_states(timeout=10.0))


@pytest.mark.parametrize(
    "wait",
    [
        lambda result: result.get(timeout=10.0),
        lambda result: result.future().result(timeout=10.0),
        lambda result: next(result.iter_states(timeout=10.0)),
        lambda result: next(iter(as_completed([result], timeout=10.0))),
        lambda result: asyncio.run(_awaited(result)),
        lambda result: asyncio.run(_first_state(result)),
        lambda result: result.state,
        lambda result: result.ready(),
    ],
)
def test_nothing_waits_for_a_result_that_cannot_come(
    task: Any, wait: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
):
    """It is said at once what is missing, and nothing else is logged."""
    result = task.delay(1)
    with pytest.raises(ConfigurationError, match="has no result backend: set result_backend"):
        wait(result)

    assert not [each for each in caplog.records if each.name == "asyncio"]


def test_lost_backend_is_named(monkeypatch: pytest.MonkeyPatch):
    """What its client says is said, and not Celery's advice to start the caller anew."""
    monkeypatch.delenv("CELERY_RESULT_BACKEND", raising=False)
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        app.conf.result_backend = "redis://127.0.0.1:1/0"
        app.conf.result_backend_transport_options = _TRIED_ONCE_MORE
        task = app.task(base=BatchTask, name="shop.lost")(_same)

        with pytest.raises(
            OperationalError, match=r"^The result backend cannot be reached: "
        ) as no:
            task.delay(1)

    assert "127.0.0.1:1" in str(no.value)
    assert "restarted" not in str(no.value)


#: Each way to make calls whose results are wanted.
_CALLS: dict[str, Callable[[Any], Any]] = {
    "one": lambda task: task.delay("a"),
    "many": lambda task: task.delay_many(["a", "b"]),
    "rows": lambda task: task.delay_rows(["a", "b"]),
    "chain": lambda task: chain(task.s("a"), task.s())(),
    "group": lambda task: group(task.s("a"), task.s("b"))(),
    "coroutine": lambda task: asyncio.run(task.adelay("a")),
    "coroutine, many": lambda task: asyncio.run(task.adelay_many(["a", "b"])),
}


def test_each_call_fails_until_the_backend_is_there(sender: Callable[..., Sender]):
    """Later calls of a process raise as its first one; nothing is sent that fails."""
    with RedisServer(port=quiet_port()) as backend:
        options = {"result_backend_transport_options": _TRIED_ONCE_MORE}
        here = sender(result_backend=backend.url, **options)
        here.task.apply_async(("warm",), ignore_result=True)
        backend.stop()
        for _ in range(3):
            for name, call in _CALLS.items():
                with pytest.raises(
                    OperationalError, match=f"connecting to 127.0.0.1:{backend.port}"
                ):
                    pytest.fail(f"{name}: {call(here.task)}")
        here.task.apply_async(("ignored",), ignore_result=True)
        sent = [each["headers"]["argsrepr"] for each in here.taken()["celery"]]
        assert ["('warm',)", "('ignored',)"] == sent
        backend.start()
        eventually(lambda: here.task.delay("back"))
        for call in _CALLS.values():
            call(here.task)
        gc.collect()  # results of Celery's own path unsubscribe when they go
