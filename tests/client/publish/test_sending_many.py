"""Many calls of a coroutine in one write."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Task
from kombu.exceptions import EncodeError, OperationalError

from celery_batch import BatchTask, ConfigurationError, PartlySent, QueueFull
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.results.listener import listener_for
from celery_batch.compat.deadline import waiting_until
from celery_batch.processes.redis_server import RedisServer
from tests.client.conftest import Sender
from tests.client.publish.test_sending import counted, texts, warmed
from tests.client.test_max_queue import stopped
from tests.services.servers.ports import quiet_port


def test_many_calls_of_a_coroutine_are_one_write(sender: Callable[..., Sender]) -> None:
    """The results come in order, and the calls are as those that a thread sends."""
    here = warmed(sender())
    with counted(here) as calls:
        results = asyncio.run(here.task.adelay_many(range(500)))
    sent = here.taken()
    rows = [(("a",), {"mark": 1}), (("b", 2), None)]
    asyncio.run(here.task.aapply_many(rows, queue="slow", priority=3))
    asked = here.taken()
    here.task.apply_many(rows, queue="slow", priority=3)
    kept = ("task", "argsrepr", "kwargsrepr", "parent_id")
    plain = [
        [[[message["headers"].get(name) for name in kept] for message in each], key]
        for lists in (asked, here.taken())
        for key, each in lists.items()
    ]

    assert 1 == calls["lpush"]
    assert [f"({number},)" for number in range(500)] == texts(sent)
    assert [each.id for each in results] == [message["headers"]["id"] for message in sent["celery"]]
    assert plain[0] == plain[1]


@pytest.mark.parametrize("row", [1, (1,), "ab", (1, 2), ((1,), 2), {"a": 1}, None], ids=repr)
@pytest.mark.parametrize("limit", [None, 10])
def test_rows_that_are_no_arguments(sender: Callable[..., Sender], row: Any, limit: Any) -> None:
    """The error says what a row is, and names the method that takes items; nothing is sent."""
    here = sender(max_queue=limit)
    says = r"each row must be .* such as \(\(1,\), None\), got .*; delay_many takes items"

    for send in (here.task.apply_many, lambda rows: asyncio.run(here.task.aapply_many(rows))):
        with pytest.raises(TypeError, match=says):
            send([((1,), None), row])
    assert {} == here.taken()


def test_event_loop_goes_on_while_many_calls_are_written(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls wait neither for the loop's thread nor for those that the application blocks."""
    here = warmed(sender())
    writing, go_on = threading.Event(), threading.Event()
    send_buffer = Publisher.of(here.app)._send_buffer
    write = send_buffer._write

    def slowly(messages: Any) -> None:
        """Write when the loop has gone on."""
        writing.set()
        assert go_on.wait(20)
        write(messages)

    monkeypatch.setattr(send_buffer, "_write", slowly)

    async def send() -> list[Any]:
        """Send, and have the loop end the write."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocking = loop.run_in_executor(None, go_on.wait, 20)
        sending = asyncio.ensure_future(here.task.adelay_many(["a", "b", "c"]))
        while not writing.is_set():  # noqa: ASYNC110 (of a thread)
            await asyncio.sleep(0.001)
        go_on.set()
        await blocking
        return await sending

    assert 3 == len(asyncio.run(send()))
    assert 3 == len(texts(here.taken()))


def test_what_cannot_be_sent_is_raised_in_the_coroutine(sender: Callable[..., Sender]) -> None:
    """Errors are those of `apply_many`: too many for the queue, one id, a refused write."""
    here = warmed(sender())
    few = here.make("few", max_queue=3)
    with pytest.raises(QueueFull):
        asyncio.run(few.adelay_many(range(4)))
    with pytest.raises(ConfigurationError, match="one task_id"):
        asyncio.run(here.task.aapply_many([(("a",), None)], task_id="one"))
    here.redis.set("celery", "not a list")
    with pytest.raises(OperationalError, match="WRONGTYPE") as caught:
        asyncio.run(here.task.adelay_many(["a", "b", "c"]))
    here.redis.delete("celery")

    assert PartlySent is not caught.type
    assert {} == here.taken()


def test_many_calls_inside_a_task_are_its_children(sender: Callable[..., Sender]) -> None:
    """A task that sends many names itself in their messages, and is refused by no limit."""
    here = warmed(sender())
    few = here.make("few", max_queue=1)
    parent = here.task
    parent.push_request(id="parent", root_id="root", called_directly=False, children=[])
    try:
        from celery._state import _task_stack  # noqa: PLC0415 (as a worker does)

        _task_stack.push(parent)
        try:
            results = asyncio.run(few.adelay_many(["a", "b"]))
        finally:
            _task_stack.pop()
        children = list(parent.request.children)
    finally:
        parent.pop_request()
    headers = [message["headers"] for each in here.taken().values() for message in each]

    assert [("root", "parent")] * 2 == [(each["root_id"], each["parent_id"]) for each in headers]
    assert results == children


def test_many_calls_of_an_eager_app_run_at_once(sender: Callable[..., Sender]) -> None:
    """Where tasks run at once, so do these."""
    here = sender(task_always_eager=True)
    results = asyncio.run(here.task.adelay_many(["a", "b"]))

    assert [["a", None], ["b", None]] == [list(each.get()) for each in results]


@pytest.mark.parametrize("driver", ["redis", "amqp"])
@pytest.mark.parametrize("conf", [{}, {"task_publish_retry": False}], ids=["retries", "once"])
def test_a_broker_that_was_never_there(
    sender: Callable[..., Sender], driver: str, conf: dict[str, Any]
) -> None:
    """Calls that share a write fail together after the tries of one, not one after the other."""
    here = sender(**conf)
    here.app.conf.broker_url = f"{driver}://127.0.0.1:{quiet_port()}//"

    async def send() -> list[Any]:
        """Make calls of two kinds at the same time."""
        calls = [here.task.adelay(number) for number in range(8)]
        calls.append(here.task.aapply_async((8,), queue="other"))
        return await asyncio.gather(*calls, return_exceptions=True)

    began = time.monotonic()
    with pytest.raises(OperationalError):
        here.task.delay("alone")
    alone = time.monotonic() - began
    errors = asyncio.run(send())

    assert {OperationalError} == {type(error) for error in errors}
    assert 9 == len({id(error) for error in errors})
    assert alone < 5
    assert time.monotonic() - began < 12


@pytest.mark.parametrize("calls", [2, 8])
def test_a_call_without_time_takes_none_from_the_others(
    sender: Callable[..., Sender], redis_server: RedisServer, calls: int
) -> None:
    """Those of the same write that may wait for a Redis that hangs for a moment are sent."""
    here = sender()
    assert listener_for(here.app)  # which the first call would wait for

    async def call(seconds: float) -> Any:
        """Make a call that has so much time."""
        with waiting_until(time.monotonic() + seconds):
            return await here.task.adelay("a")

    async def send() -> list[Any]:
        """Make calls at the same time, of which the first has not enough."""
        with stopped(redis_server):
            both = asyncio.gather(
                call(0.2), *[call(60.0) for _ in range(1, calls)], return_exceptions=True
            )
            await asyncio.sleep(1.0)
        return await both

    _, *others = asyncio.run(send())
    sent = {message["headers"]["id"] for message in here.taken()["celery"]}

    assert {getattr(each, "id", each) for each in others} <= sent


@pytest.mark.parametrize("driver", ["redis", "amqp"])
def test_a_broker_that_is_away_is_tried_as_often_as_by_celery(
    sender: Callable[..., Sender], driver: str
) -> None:
    """A call connects no more often in vain than one of an ordinary task."""
    tries = []
    for apply in (Task.apply_async, BatchTask.apply_async):
        with _HangsUp() as server:
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            here = sender()
            here.app.conf.broker_url = f"{driver}://127.0.0.1:{server.server_address[1]}//"
            for _ in range(2):
                with pytest.raises(OperationalError):
                    apply(here.task, ("a",), ignore_result=True)
                tries.append(server.tries)
            server.shutdown()

    assert tries[:2] == tries[2:]


def test_what_cannot_be_sent_is_told_before_a_broker_that_is_away(
    sender: Callable[..., Sender],
) -> None:
    """A caller's mistake is the error of its call, wherever the broker is."""
    here = sender()
    here.app.conf.broker_url = f"redis://127.0.0.1:{quiet_port()}//"
    calls = {
        TypeError: [(("a", "b", "c"), None)],
        EncodeError: [((object(),), None)],
        OperationalError: [(("a",), None)],
    }
    for kind, rows in calls.items():
        with pytest.raises(kind):
            here.task.apply_async(*rows[0], ignore_result=True)
        with pytest.raises(kind):
            here.task.apply_many(rows, ignore_result=True)


class _HangsUp(socketserver.TCPServer):
    """A server that is no broker: it counts who connects, and says nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.tries = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count, and hang up."""
        self.tries += 1
        super().process_request(request, client_address)
