"""`max_queue`: calls are refused at once while too many items wait."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import chain, chord, group

from celery_batch import BatchTask, ConfigurationError, QueueFull
from celery_batch.client.queue_depth import DepthPoller
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.client.conftest import Sender
from tests.services.setup import Setup

pytestmark = pytest.mark.usefixtures("lasting_measurements")


def known(task: Any, waiting: int) -> None:
    """Have a task's queue measured until a number is known to wait there."""
    poller = DepthPoller.of(task.app)

    def why_not() -> str:
        now = time.monotonic()
        seen = poller.depth("celery", now).waiting(now)
        return "" if seen is not None and round(seen) == waiting else f"{seen} are known to wait"

    wait_until(why_not, [], what="a measurement", timeout=60)


def limited(here: Sender, most: int = 10, **options: Any) -> Any:
    """Make a task with a limit, whose queue is known to be empty."""
    task = here.make("limited", max_queue=most, **options)
    known(task, 0)
    return task


def count(here: Sender) -> int:
    """Return how many messages wait in the broker."""
    return int(here.redis.llen("celery"))


def test_calls_are_refused_while_too_many_wait(sender: Callable[..., Sender]) -> None:
    """As many calls are sent as may wait, and no more; once they are taken, others are sent."""
    here = sender()
    task = limited(here)
    for number in range(10):
        task.delay(number)
    known(task, 10)
    with pytest.raises(QueueFull, match="10 items wait in queue 'celery' and 1 more"):
        task.delay("one more")
    assert 10 == count(here)

    here.taken()
    known(task, 0)
    task.delay("again")

    assert 1 == count(here)


def test_what_others_sent_counts(sender: Callable[..., Sender]) -> None:
    """A measurement includes what other processes and other tasks of the queue have sent."""
    here = sender()
    task = limited(here)
    for number in range(12):
        here.task.apply_async((number,), priority=number % 10)
    known(task, 12)

    with pytest.raises(QueueFull):
        task.delay(1)


def test_many_calls_are_sent_together_or_not_at_all(sender: Callable[..., Sender]) -> None:
    """`delay_many` sends all or nothing, and says if it never could."""
    here = sender()
    task = limited(here)
    task.delay_many(range(7))
    known(task, 7)
    with pytest.raises(QueueFull, match="4 more are too many"):
        task.delay_many(iter(range(4)))
    with pytest.raises(QueueFull, match="more items in one call than max_queue=10 never fit"):
        task.delay_many(range(1000))
    task.delay_many(range(3))

    assert 10 == count(here)


def test_a_chunk_counts_as_its_rows(sender: Callable[..., Sender]) -> None:
    """A chunk needs room for each of its rows."""
    here = sender()
    task = limited(here)
    task.delay_rows(list("abcdef"))
    task.delay_rows(list("abcd"))
    with pytest.raises(QueueFull, match="more items in one call than max_queue=10 never fit"):
        task.delay_rows(list("abcdefghijk"))
    known(task, 2)
    with pytest.raises(QueueFull, match="9 more"):
        task.delay_rows(list("abcdefghi"))

    assert 2 == count(here)


@pytest.mark.parametrize("bulk", [True, False])
def test_a_group_is_sent_whole_or_not_at_all(sender: Callable[..., Sender], *, bulk: bool) -> None:
    """A group's members that would be sent at once are admitted together."""
    here = sender(batch_bulk=bulk)
    task = limited(here, ignore_result=True)
    members = [task.s(1), chain(task.s(2), task.si(3)), group(task.s(4), task.s(5))]
    group(*members, here.task.s(6)).apply_async()
    known(task, 5)
    assert 5 == count(here)
    with pytest.raises(QueueFull, match="7 more are too many"):
        group(task.s(number) for number in range(7)).delay()
    with pytest.raises(QueueFull):
        chord([task.s(number) for number in range(7)], here.task.s()).delay()

    assert 5 == count(here)


def test_a_coroutine_is_refused_before_others_write(
    sender: Callable[..., Sender], redis_server: RedisServer
) -> None:
    """A coroutine is refused at once, even while Redis does not answer."""
    here = sender()
    task = limited(here)

    async def send() -> None:
        """Send more calls than may wait."""
        await asyncio.gather(*(task.adelay(number) for number in range(10)))
        known(task, 10)
        with stopped(redis_server):
            with pytest.raises(QueueFull):
                await task.adelay(11)
            with pytest.raises(QueueFull):
                task.delay(12)

    asyncio.run(send())

    assert 10 == count(here)


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    """Stop a Redis with SIGSTOP, and let it go on."""
    with redis.Redis(unix_socket_path=str(server.directory / "redis.sock")) as client:
        process = int(client.info("server")["process_id"])
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_the_setting_holds_for_tasks_without_a_limit(sender: Callable[..., Sender]) -> None:
    """`batch_max_queue` is the limit of all tasks without one, also when it is set later."""
    here = sender()
    own = limited(here, 1000)
    here.task.delay_many(range(3))
    here.app.conf.batch_max_queue = 3
    known(here.task, 3)
    with pytest.raises(QueueFull, match=r"shout: 3 items .* max_queue=3"):
        here.task.delay(4)
    own.delay(5)

    assert 4 == count(here)


def test_a_task_in_a_worker_is_never_refused(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a running task calls, and a retry, belong to a call that was admitted."""
    here = sender()
    task = limited(here, 1)
    task.delay(1)
    known(task, 1)
    with pytest.raises(QueueFull):
        task.delay(2)
    task.apply_async((3,), retries=1)
    monkeypatch.setattr("celery_batch.client.backpressure.task_join_will_block", lambda: True)
    task.delay_many(range(4, 9))

    assert 7 == count(here)


def test_other_queues_have_their_own_depth(sender: Callable[..., Sender]) -> None:
    """The queue that a call goes to decides, by option or by route."""
    here = sender(task_routes={"routed": "elsewhere"})
    task = limited(here, 1)
    routed = here.make("routed", max_queue=1)
    task.delay(1)
    routed.delay(1)
    task.apply_async((1,), queue="third")
    poller = DepthPoller.of(here.app)

    assert {"celery": 1, "elsewhere": 1, "third": 1} == {
        name: depth.items for name, depth in poller._depths.items()
    }


def test_the_error_survives_the_way_to_others() -> None:
    """The error keeps its words and its time when it is pickled."""
    error = pickle.loads(pickle.dumps(QueueFull("full", retry_after=2.5)))  # noqa: S301

    assert ("full", 2.5, 429) == (str(error), error.retry_after, error.status_code)


def test_an_unknown_broker_refuses_no_call(in_python: Callable[..., str]) -> None:
    """With a broker whose queues cannot be measured, no call is refused and no thread starts."""
    code = (
        "import threading; from celery import Celery; from celery_batch import BatchTask\n"
        "app = Celery('x', broker='memory://', set_as_current=False)\n"
        "@app.task(base=BatchTask, max_queue=1)\n"
        "def f(x): return x\n"
        "for n in range(5): f.apply_async((n,), ignore_result=True)\n"
        "print(threading.active_count())"
    )

    assert "1" == in_python(code)


def test_a_fork_measures_for_itself(sender: Callable[..., Sender]) -> None:
    """A forked process measures with a thread and a connection of its own."""
    here = sender()
    task = limited(here)
    for number in range(10):
        here.task.delay(number)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            known(task, 10)
            task.delay(1)
        except QueueFull:
            os.write(writes, b"full")
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert b"full" == os.read(reads, 4)
    os.close(reads)
    os.close(writes)


def test_rabbitmq_says_how_many_wait(rabbit_setup: Setup) -> None:
    """On RabbitMQ the queue is measured; one that does not exist is empty."""
    app = rabbit_setup.app

    @app.task(base=BatchTask, name="shop.limited", max_queue=3)
    def few(x: list[Any]) -> list[Any]:
        return x

    known(few, 0)
    few.delay_many(range(3))
    known(few, 3)

    with pytest.raises(QueueFull):
        few.delay(4)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_a_limit_is_a_whole_number(sender: Callable[..., Sender], value: Any) -> None:
    """A limit that makes no sense is refused, by the name it was given under."""
    here = sender()
    with pytest.raises(ConfigurationError, match=r"limited\.max_queue: must be a whole number"):
        here.make("limited", max_queue=value).bind(here.app)
    here.app.conf.batch_max_queue = value

    with pytest.raises(ConfigurationError, match="batch_max_queue: must be a whole number"):
        here.task.delay(1)
