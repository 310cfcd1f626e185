"""`max_queue` while the broker is away: a dead broker does not read as overload."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis

from celery_batch import BatchError, BatchTask, BrokerUnreachable, QueueFull
from celery_batch.broker_depth import open_depth_reader
from celery_batch.client import queue_depth
from celery_batch.client.queue_depth import DepthPoller
from celery_batch.processes.redis_server import RedisServer
from tests.client.test_max_queue import known

#: Where no Redis has ever been.
NOWHERE = "redis://127.0.0.1:1/0"

#: Calls, and how many of them may wait.
CALLS, MOST = 40, 12

#: Times that an event loop goes round while calls wait.
TURNS = 5


def limited(broker: str, most: int = MOST, *, tries: int = 1) -> Any:
    """Return a task with a limit, whose calls try so often to reach the broker."""
    app = Celery("outage", broker=broker, set_as_current=False)
    app.conf.update(task_publish_retry=False, task_ignore_result=True)
    app.conf.broker_transport_options = {"max_retries": tries - 1, "interval_start": 1.0}

    @app.task(base=BatchTask, name="limited", max_queue=most)
    def task(x: list[Any]) -> list[Any]:
        return x

    return task


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis of the test's own."""
    with RedisServer() as server:
        yield server


def outcomes(calls: int, call: Callable[[], Any]) -> Counter[str]:
    """Make calls in so many threads at once; return how they ended, by the kind of error."""
    start, ended = threading.Barrier(calls), Counter[str]()

    def run() -> None:
        start.wait()
        ended[kind_of(call)] += 1

    threads = [threading.Thread(target=run) for _ in range(calls)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return ended


def kind_of(call: Callable[[], Any]) -> str:
    """Return how a call ended."""
    try:
        call()
    except QueueFull:
        return "full"
    except OperationalError:
        return "away"
    return "sent"


def test_a_broker_that_never_was_there_is_not_full() -> None:
    """Calls at the same instant, more than may wait, fail because the broker is away."""
    task = limited(NOWHERE, tries=2)

    assert {"away": CALLS} == outcomes(CALLS, lambda: task.delay(1))


def test_a_broker_that_goes_away_is_not_full(server: RedisServer) -> None:
    """Calls one after another fail because the broker is away, once it has died."""
    task = limited(server.url)
    known(task, 0)
    task.delay(1)
    server.stop()

    assert {"away": CALLS} == Counter(kind_of(lambda: task.delay(1)) for _ in range(CALLS))


@pytest.mark.usefixtures("lasting_measurements")
def test_a_broker_that_is_slow_at_first_is_not_away(server: RedisServer) -> None:
    """Calls at the same instant, more than may wait, are refused for a full queue."""
    task = limited(server.url)
    with Redis(unix_socket_path=str(server.directory / "redis.sock")) as client:
        client.client_pause(400)

    assert {"sent": MOST, "full": CALLS - MOST} == outcomes(CALLS, lambda: task.delay(1))


def test_calls_of_coroutines_fail_too() -> None:
    """So do the calls of an event loop, which must not be blocked for long."""
    task = limited(NOWHERE, 3, tries=2)

    async def send() -> list[Any]:
        """Send all calls at once."""
        calls = (task.adelay(number) for number in range(CALLS))
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(send())

    assert [] == [each for each in errors if not isinstance(each, OperationalError)]


def test_a_call_that_could_not_be_sent_leaves_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed call and before a measurement, no more calls than may wait are tried."""
    task = limited(NOWHERE, 1)
    poller = DepthPoller.of(task.app)
    monkeypatch.setattr(poller, "measure_soon", lambda: None)
    depth = poller.depth("celery", time.monotonic())
    depth.record(0, depth.settled, time.monotonic())
    with pytest.raises(OperationalError) as tried:
        task.delay(1)
    with pytest.raises(BrokerUnreachable, match=r"limited: the broker does not answer") as refused:
        task.delay(2)

    assert BrokerUnreachable is not tried.type
    assert isinstance(refused.value, BatchError)
    assert (503, 1.0) == (refused.value.status_code, refused.value.retry_after)


def test_a_full_queue_is_full_again_once_the_broker_answers(server: RedisServer) -> None:
    """After a failed call, the next measurement tells that the queue is full."""
    task = limited(server.url, 1)
    task.delay(1)
    known(task, 1)
    DepthPoller.of(task.app).depth("celery", time.monotonic()).is_unreachable = True
    seen = set()
    while "full" not in seen:
        seen.add(kind_of(lambda: task.delay(2)))

    assert "sent" not in seen


@pytest.mark.parametrize("broker", [NOWHERE, "amqp://127.0.0.1:1//"])
def test_connecting_to_a_dead_broker_is_tried_once(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement never sleeps between tries: callers wait for it."""
    app = Celery("measuring", broker=broker, set_as_current=False)
    slept: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", slept.append)
    with pytest.raises(OperationalError):
        open_depth_reader(app)

    assert [] == slept


def test_the_error_survives_the_way_to_others() -> None:
    """The error keeps its words and its time when it is pickled."""
    error = pickle.loads(pickle.dumps(BrokerUnreachable("away", retry_after=2.5)))  # noqa: S301

    assert ("away", 2.5, 503) == (str(error), error.retry_after, error.status_code)


def test_the_loop_goes_on_during_a_first_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that hangs keeps coroutines from sending, and the event loop from nothing."""
    monkeypatch.setattr(queue_depth, "_FIRST", 10.0)

    async def send(task: Any) -> tuple[list[Any], int]:
        """Send all calls at once, which wait until the loop has gone round so many times."""
        calls = [asyncio.ensure_future(task.adelay(number)) for number in range(CALLS)]
        refused, turns = calls[MOST:], 0
        while not all(each.done() for each in refused):
            await asyncio.sleep(0.005)
            turns += 1
            if turns == TURNS:
                monkeypatch.setattr(queue_depth, "_FIRST", 0.0)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return [each.exception() for each in refused], turns

    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        task = limited(f"redis://{host}:{port}/0")
        task.app.conf.broker_transport_options["socket_timeout"] = 10.0  # of the measurement, too
        errors, turns = asyncio.run(send(task))

    assert {BrokerUnreachable} == {type(each) for each in errors}
    assert turns >= TURNS  # a loop that waits goes round once
