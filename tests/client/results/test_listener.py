"""One connection hears of all results, and is there again after whatever happens to it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.exceptions import OperationalError

from celery_batch import BatchTask
from celery_batch.client import background as threads_of_clients
from celery_batch.client.results import listener as store
from celery_batch.client.results import listener as sweep
from celery_batch.client.results.listener import (
    Listener,
    ResultReader,
    Subscription,
    close_listener,
    is_listening,
    listener_for,
)
from celery_batch.client.results.pending import PendingResults
from celery_batch.client.results.result import BatchResult
from celery_batch.client.results.waiting import ThreadWaiter, wait_until_ended
from celery_batch.compat.deadline import waiting_until
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import LARGEST_VALUE
from celery_batch.streamer.redis_streamer import RequestFuture
from tests.client.test_max_queue import stopped
from tests.services.fake_worker import FakeWorker
from tests.services.setup import emptied

SOON = 20.0


def threads(name: str) -> list[threading.Thread]:
    """Return this process' threads of a name."""
    return [thread for thread in threading.enumerate() if thread.name == name]


def until_heard(background: FakeWorker) -> None:
    """Return when the listener's channel has a subscriber."""
    channel = background.listener.channel

    def why_not() -> str:
        try:
            return "" if background.redis.pubsub_numsub(channel)[0][1] else "nobody listens"
        except store.RedisError as error:
            return str(error)

    wait_until(why_not, [], what=channel, timeout=SOON)


def test_channel_is_confirmed_before_it_is_named(background: FakeWorker):
    """Whoever is told the channel's name can count on being heard."""
    channel = background.listener.channel

    assert {channel: 1} == background.subscribers()
    assert is_listening(background.app)


def test_no_message_is_logged(redis_server: RedisServer, caplog: pytest.LogCaptureFixture):
    """Redis-py makes a text of each for a log that is off."""
    app = Celery("reader", backend=redis_server.url, set_as_current=False)
    reader = ResultReader(app.backend)
    subscription = Subscription(reader.client())
    with caplog.at_level(logging.DEBUG, "push_response"):
        subscription.start("replies")
        reader.wake("replies")
        assert subscription.read() == b""
    subscription.close()
    reader.close()

    assert not [each for each in caplog.records if each.name == "push_response"]


def test_one_listener_for_all_threads(background: FakeWorker):
    """However many threads ask at once, there is one listener and one connection."""
    with ThreadPoolExecutor(32) as pool:
        found = set(pool.map(lambda _: listener_for(background.app), range(64)))

    assert 1 == len(found)
    assert [1] == list(background.subscribers().values())


@pytest.mark.parametrize(
    "conf",
    [{"batch_bulk": False}, {"result_backend": "cache+memory://"}, {"result_backend": "rpc://"}],
    ids=["switched off", "cache", "rpc"],
)
def test_no_listener_where_results_go_celery_s_way(redis_server: RedisServer, conf: dict):
    """Other backends, and a switch, leave results to Celery."""
    with_conf = FakeWorker(redis_server, **conf)

    assert listener_for(with_conf.app) is None


def test_no_listener_inside_a_task(background: FakeWorker):
    """A task may not wait for others, so no pool process begins to listen."""
    from celery.result import denied_join_result  # noqa: PLC0415

    with denied_join_result():
        inside = listener_for(background.app)

    assert inside is None
    assert not is_listening(background.app)


def test_user_who_may_not_listen_is_told_once(tmp_path: Path, caplog):
    """Where Redis forbids the channel, results go Celery's way, with one warning."""
    with RedisServer(tmp_path / "redis") as server, FakeWorker(server) as background:
        background.redis.execute_command("ACL", "SETUSER", "default", "resetchannels")
        with caplog.at_level(logging.WARNING):
            found = [listener_for(background.app) for _ in range(3)]
        warnings = [
            one for one in caplog.records if "does not allow the subscription" in one.message
        ]

    assert [None] * 3 == found
    assert 1 == len(warnings)


def test_who_waits_when_listening_is_forbidden(tmp_path: Path):
    """If Redis takes the right to listen away, what is waited for is found, however one waits."""
    with RedisServer(tmp_path / "redis") as server, FakeWorker(server) as background:
        results = background.ask_many(5)
        group = background.app.GroupResult("group", background.ask_many(40))
        listener = background.listener

        async def wait_for(result: BatchResult) -> object:
            """Await a result."""
            return await result

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(asyncio.run, wait_for(results[0]))]
            answers += [pool.submit(result.get, SOON) for result in results[1:3]]
            answers.append(pool.submit(group.get, SOON))
            futures = [results[3].future()]
            waiting = [*results[:4], group[-1]]
            wait_until(
                lambda: "" if all(each.pending_result.callbacks for each in waiting) else "not yet",
                [],
                what="waiting threads",
                timeout=SOON,
            )
            allowed = "&celery-task-meta-*"
            background.redis.execute_command("ACL", "SETUSER", "default", "resetchannels", allowed)
            background.redis.client_kill_filter(_type="pubsub")
            wait_until(
                lambda: "" if listener.is_forbidden else "not yet", [], what="loss", timeout=SOON
            )
            for n, result in enumerate([*results, *group]):
                background.store(result, n)
            late = asyncio.run(wait_for(results[4])), results[4].future().result(SOON)
            values = [answer.result(SOON) for answer in [*answers, *futures]]

        assert listener_for(background.app) is None
        assert not is_listening(background.app)
    assert (4, 4) == late
    assert [0, 1, 2, list(range(5, 45)), 3] == values


def test_no_pause_after_a_find(monkeypatch: pytest.MonkeyPatch):
    """Where nobody tells, whoever has found something looks for more at once."""
    app = Celery("asker", backend="cache+memory://", set_as_current=False)
    ended, asked = {"a", "b"}, []

    def has_ended(result: BatchResult) -> bool:
        asked.append(result.id)
        return result.id in ended

    monkeypatch.setattr("celery_batch.client.results.waiting.has_ended", has_ended)
    monkeypatch.setattr("celery_batch.client.results.waiting.CHECK_INTERVAL", 0.01)
    waiter = ThreadWaiter(app, None, lambda: ended.add("c"))
    found = [each.id for each in waiter.arrivals([BatchResult(name, app=app) for name in "abc"])]

    assert ["a", "b", "c"] == found
    assert ["a", "b", "c", "c", "c"] == asked


@pytest.mark.parametrize("left", [0.1, None])
def test_no_listener_is_waited_for_longer_than_somebody_has(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch, left: float | None
) -> None:
    """A wait for a listener that is not there yet ends with the time of whoever waits."""
    asked: list[float] = []
    result = background.ask()
    monkeypatch.setattr(
        "celery_batch.client.results.listener.Listener.wait",
        lambda _, timeout: bool(asked.append(timeout)),
    )
    monkeypatch.setattr("celery_batch.client.results.waiting.CHECK_INTERVAL", 0.01)

    def interrupt() -> None:
        if len(asked) > 1:
            raise InterruptedError

    waiter = ThreadWaiter(background.app, left, interrupt)
    with pytest.raises((CeleryTimeoutError, InterruptedError)):
        list(waiter.arrivals([result]))

    assert asked
    assert result.pending_result.value is None
    assert {store.TIMEOUT} == set(asked) if left is None else max(asked) <= left


def test_no_listener_is_waited_for_longer_than_a_step_may_take(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step through a task's states waits for no listener, so it ends in time."""
    result = background.ask()
    monkeypatch.setattr("celery_batch.client.results.listener.Listener.wait", pytest.fail)
    began = time.monotonic()
    with pytest.raises(CeleryTimeoutError):
        next(result.iter_states(timeout=0.1))

    assert 0.1 <= time.monotonic() - began < SOON


def _same(x: list[object]) -> list[object]:
    return x


def test_no_call_waits_for_a_listener_beyond_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first call of a process, while Redis hangs."""
    monkeypatch.setattr(store, "TIMEOUT", 50.0)
    monkeypatch.setattr(listener_for, "__defaults__", (50.0,))
    with RedisServer(tmp_path / "redis") as server, FakeWorker(server) as background:
        task = background.app.task(base=BatchTask, name="first")(_same)
        with stopped(server):
            began = time.monotonic()
            with pytest.raises((OperationalError, TimeoutError)), waiting_until(began + 0.2):
                task.delay("a")
            took = time.monotonic() - began

    assert took < 30.0  # a listener may take 50 s


def test_no_listener_while_redis_is_away(tmp_path: Path):
    """A Redis that does not answer costs a moment, and is heard when it is back."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    with FakeWorker(server) as background:
        server.stop()
        without = listener_for(background.app)
        with server:
            wait_until(
                lambda: "" if listener_for(background.app) else "none yet",
                [],
                what="listener",
                timeout=SOON,
            )
            result = background.ask()
            background.answer(result, 1)
            answer = result.get(timeout=SOON)

    assert (None, 1) == (without, answer)


def test_awaited_while_redis_is_away(tmp_path: Path):
    """Who awaits a result before Redis has ever answered has it when Redis is there."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    with FakeWorker(server, result_backend_always_retry=False) as background:
        server.stop()
        without = listener_for(background.app)
        result = BatchResult("untold", app=background.app)

        async def wait() -> object:
            """Await it, and have Redis begin meanwhile."""
            waiting = asyncio.ensure_future(wait_until_ended(result))
            done, _ = await asyncio.wait([waiting], timeout=0.5)
            if done:
                return "no longer awaited", waiting.exception()
            await asyncio.to_thread(server.start)
            background.store(result, 1)  # another thread would have a backend that nobody closes
            async with asyncio.timeout(SOON):
                await waiting
            return result.result

        try:
            value = asyncio.run(wait())
        finally:
            server.stop()

    assert (None, 1) == (without, value)


def test_key_prefix_is_kept(redis_server: RedisServer):
    """With a global key prefix the channel carries it, and keys are found."""
    emptied(redis_server)
    with FakeWorker(
        redis_server, result_backend_transport_options={"global_keyprefix": "mine:"}
    ) as background:
        result, untold = background.ask_many(2)
        background.answer(result, 1)
        background.store(untold, 2)
        keys = {key.decode() for key in background.redis.scan_iter()}

        assert background.listener.channel.startswith("mine:celery-batch-replies-")
        assert {f"mine:celery-task-meta-{each.id}" for each in (result, untold)} == keys
        assert [1, 2] == [result.get(timeout=SOON), untold.get(timeout=SOON)]


def test_missed_notification_costs_a_second(background: FakeWorker):
    """What is stored and not told of is found soon, without asking again and again."""
    results = background.ask_many(3)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(result.get) for result in results]
        wait_until(
            lambda: "" if all(each.pending_result.callbacks for each in results) else "not yet",
            [],
            what="waiting threads",
            timeout=SOON,
        )
        for n, result in enumerate(results):
            background.store(result, n)
        before = background.redis.info("commandstats").get("cmdstat_mget", {}).get("calls", 0)
        began = time.monotonic()
        values = [answer.result() for answer in answers]
        took = time.monotonic() - began
        looks = background.redis.info("commandstats")["cmdstat_mget"]["calls"] - before

    assert [0, 1, 2] == values
    assert took < 10.0  # one sweep, on a busy machine
    assert looks <= 3


def test_results_that_were_there_all_along_are_not_waited_for(background: FakeWorker):
    """After an interruption, each of many results is found by a look, not by a sweep each."""
    results = background.ask_many(30)
    for n, result in enumerate(results):
        background.store(result, n)
    PendingResults.of(background.app).poll_all()
    began = time.monotonic()
    values = [result.get(timeout=SOON) for result in results]

    assert list(range(30)) == values
    assert time.monotonic() - began < 20.0  # 27 seconds by sweeps


def test_restart_of_redis_while_waiting(tmp_path: Path):
    """Threads and coroutines that wait survive a Redis that goes and comes back."""
    with RedisServer(tmp_path / "redis") as server, FakeWorker(server) as background:
        results = background.ask_many(6)
        background.app.backend.client.ping()

        async def wait_for(result: BatchResult) -> object:
            """Await a result."""
            return await result

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(result.get) for result in results[:2]]
            answers += [pool.submit(asyncio.run, wait_for(result)) for result in results[2:4]]
            futures = [result.future() for result in results[4:]]
            wait_until(
                lambda: "" if all(each.pending_result.callbacks for each in results) else "not yet",
                [],
                what="waiting threads",
                timeout=SOON,
            )
            server.stop()
            wait_until(
                lambda: "" if not (tmp_path / "redis/redis.sock").exists() else "still there",
                [],
                what="no Redis",
                timeout=SOON,
            )
            server.start()
            for n, result in enumerate(results):
                background.store(result, n)
            values = [answer.result(SOON) for answer in [*answers, *futures]]
        until_heard(background)
        after = background.ask()
        background.answer(after, "after")

        assert list(range(6)) == values
        assert "after" == after.get(timeout=SOON)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", ["celery-batch-replies", "celery-batch-poll"])
def test_thread_that_died_is_begun_again(background: FakeWorker, name: str, monkeypatch):
    """If one of the two threads ends against all odds, the other begins it again."""
    monkeypatch.setattr(store, "QUIET", 0.2)
    until_heard(background)
    before = set(threads(name))
    (victim,) = [
        thread for thread in before if thread is background.listener._threads[name[13:]]._thread
    ]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(victim.ident), ctypes.py_object(SystemExit)
    )
    if name.endswith("replies"):
        background.notify([])
        background.redis.publish(background.listener.channel, b"")
    wait_until(
        lambda: "" if set(threads(name)) - before else "not yet", [], what=name, timeout=SOON
    )
    until_heard(background)
    told, untold = background.ask_many(2)
    background.answer(told, 1)
    background.store(untold, 2)

    assert [1, 2] == [told.get(timeout=SOON), untold.get(timeout=SOON)]
    assert not victim.is_alive()


def test_silent_connection_is_given_up(background: FakeWorker, monkeypatch):
    """A connection whose other side is gone without a word is made again."""
    channel = background.listener.channel
    until_heard(background)
    (first,) = background.redis.client_list(_type="pubsub")
    monkeypatch.setattr(store, "QUIET", 0.1)
    monkeypatch.setattr(store, "TIMEOUT", 0.5)
    monkeypatch.setattr("redis.client.PubSub.ping", lambda _: None)
    background.redis.publish(channel, b"")
    wait_until(
        lambda: (
            ""
            if [
                one
                for one in background.redis.client_list(_type="pubsub")
                if one["id"] != first["id"]
            ]
            else "not yet"
        ),
        [],
        what="another connection",
        timeout=SOON,
    )
    monkeypatch.undo()
    result = background.ask()
    background.answer(result, 1)

    assert 1 == result.get(timeout=SOON)


def test_idle_connection_is_kept(background: FakeWorker, monkeypatch):
    """A connection that is only quiet answers a ping, and stays."""
    monkeypatch.setattr(store, "QUIET", 0.05)
    until_heard(background)
    background.redis.publish(background.listener.channel, b"")
    (first,) = background.redis.client_list(_type="pubsub")
    pings = lambda: background.redis.info("commandstats").get("cmdstat_ping", {}).get("calls", 0)  # noqa: E731
    before = pings()
    wait_until(lambda: "" if pings() > before + 3 else "not yet", [], what="pings", timeout=SOON)
    (last,) = background.redis.client_list(_type="pubsub")

    assert first["id"] == last["id"]


def test_what_is_no_reply_is_ignored(background: FakeWorker, caplog):
    """Garbage on the channel harms nobody."""
    result = background.ask()
    with caplog.at_level(logging.WARNING):
        background.redis.publish(background.listener.channel, b"\xff\xfe")
        background.redis.publish(background.listener.channel, b"1:a,")
        background.answer(result, 1)

        assert 1 == result.get(timeout=SOON)
    assert 2 == caplog.text.count("Received a message that holds no replies")


def test_large_value_is_read_where_it_is_stored(background: FakeWorker):
    """What is too large to be told is there all the same, however one waits."""
    results = background.ask_many(4)
    future = results[0].future()
    large = "x" * (LARGEST_VALUE + 1)

    async def wait() -> object:
        """Await a result."""
        return await results[1]

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(asyncio.run, wait()), pool.submit(results[2].get, SOON)]
        for result in results:
            background.store(result, large)
        background.notify(results)
        values = [future.result(SOON), *(each.result() for each in answers), results[3].get(SOON)]

    assert all(large == value for value in values)


def test_results_that_nobody_wants_leave_nothing_behind(background: FakeWorker):
    """Two hundred thousand results, dropped, timed out, answered or not, leave memory as it was."""
    pending = PendingResults.of(background.app)
    process = psutil.Process(os.getpid())

    def many(rounds: int) -> int:
        for n in range(rounds):
            results = background.ask_many(1000)
            results[0].then(print, weak=True)
            results[1].future().cancel()
            with pytest.raises(CeleryTimeoutError):
                results[2].get(timeout=0.0)
            if n % 10 == 0:
                for result in results[3:6]:
                    background.answer(result, n)
                assert n == results[3].get(timeout=SOON)
        del results, result
        gc.collect()
        return process.memory_info().rss

    before = many(20)
    after = many(200)
    left = pending.take_due(10), len(pending), len(background.app.backend._pending_results[0])

    assert ([], 0, 0) == left
    assert after - before < 4 << 20


def test_pending_result_is_small(background: FakeWorker):
    """A result that waits takes a small part of what Celery's takes."""
    import tracemalloc  # noqa: PLC0415

    number = 1000
    ours = background.ask_many(1)
    sizes = []
    tracemalloc.start()
    try:
        # Before ours, for whose subscriptions another thread frees what it has allocated.
        before = tracemalloc.get_traced_memory()[0]
        stock = [background.app.AsyncResult(str(n)) for n in range(number)]
        theirs = (tracemalloc.get_traced_memory()[0] - before) / number
        # What other threads allocate meanwhile is counted, too, and only adds to it.
        for _ in range(5):
            before = tracemalloc.get_traced_memory()[0]
            ours += background.ask_many(number)
            sizes.append((tracemalloc.get_traced_memory()[0] - before) / number)
    finally:
        tracemalloc.stop()

    assert min(sizes) < 0.6 * theirs, (sizes, theirs, len(stock))


def test_sweep_goes_in_pieces(background: FakeWorker, monkeypatch):
    """Looking for much is done in pieces, so that Redis serves others meanwhile."""
    sizes = []
    monkeypatch.setattr(sweep, "POLL_LIMIT", 100)
    results = background.ask_many(300)
    read = background.listener._store.read

    def spy(task_ids: list[str]) -> object:
        sizes.append(len(task_ids))
        return read(task_ids)

    monkeypatch.setattr(background.listener._store, "read", spy)
    futures = [result.future() for result in results]
    for n, result in enumerate(results):
        background.app.backend.set(
            background.app.backend.get_key_for_task(result.id), _value(background, n)
        )

    assert list(range(300)) == [future.result(SOON) for future in futures]
    assert 100 == max(sizes)


def test_slow_look_costs_no_long_rest(monkeypatch: pytest.MonkeyPatch):
    """However long Redis takes for a look, the next follows within a second."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pending = PendingResults(None)
    result = pending.get("1")
    pending.add_callback(result, pytest.fail)

    class Slow:
        def read(self, task_ids: list[str]) -> list[bytes]:
            """Find nothing, slowly."""
            now[0] += 2.0
            return [b""] * len(task_ids)

    rest = sweep.StorePoller(pending, Slow()).poll()

    assert 1.0 == rest


def _value(background: FakeWorker, value: object) -> str:
    meta = background.app.backend._get_result_meta(value, "SUCCESS", None, None)
    return background.app.backend.encode(meta)


class Waiting:
    """
    Somebody who waits for a result in a way that has no thread of its own to look around.

    Args:
        way: ``await``, ``states``, ``future`` or ``streamer``.
        result: The result.
    """

    def __init__(self, way: str, result: BatchResult) -> None:
        self._pool = ThreadPoolExecutor(1)
        coroutines = {"await": _value_of, "states": _last_state_of}
        if way in coroutines:
            self.future = self._pool.submit(asyncio.run, coroutines[way](result))
        elif way == "future":
            self.future = result.future()
        else:
            self.future = RequestFuture([result], None, "streamer")
            self.future.watch()
        reply = result.pending_result
        wait_until(
            lambda: "" if reply.callbacks or reply.state_callbacks else "not yet",
            [],
            what="somebody who waits",
            timeout=SOON,
        )

    def answer(self) -> object:
        """Return what has come."""
        with self._pool:
            return self.future.result(SOON)


async def _value_of(result: BatchResult) -> object:
    async with asyncio.timeout(SOON):
        return await result


async def _last_state_of(result: BatchResult) -> object:
    async with asyncio.timeout(SOON):
        return [state async for state in result.iter_states()][-1]


WAYS = {"await": 1, "states": "SUCCESS", "future": 1, "streamer": [1]}


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_alone_outlives_a_closed_listener(background: FakeWorker, way: str) -> None:
    """Closing the listener leaves nobody waiting, though nobody else asks for another one."""
    result = background.ask()
    waiting = Waiting(way, result)
    close_listener(background.app)
    background.store(result, 1)

    assert WAYS[way] == waiting.answer()


def test_who_comes_as_the_listener_is_closed_is_answered(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who saw a listener before it was closed, and waits afterwards, has begun one."""
    result = background.ask()
    add_callback = PendingResults.add_callback

    def close_and_add(self: PendingResults, *args: object) -> bool:
        monkeypatch.undo()
        close_listener(background.app)
        background.store(result, 1)
        return add_callback(self, *args)

    monkeypatch.setattr(PendingResults, "add_callback", close_and_add)

    assert 1 == asyncio.run(_value_of(result))


def test_a_listener_that_begins_while_another_is_closed_looks_soon(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is awaited then is looked for by the new one, at once where that is wanted."""
    close = Listener.close

    def begin_and_close(self: Listener) -> None:
        monkeypatch.undo()
        listener_for(background.app)
        close(self)

    assert listener_for(background.app)
    monkeypatch.setattr(Listener, "close", begin_and_close)
    close_listener(background.app)
    listener = listener_for(background.app)

    assert listener is not None
    assert PendingResults.of(background.app).on_awaited == listener.on_awaited


def test_closing_a_listener_begins_none_where_nobody_waits(background: FakeWorker) -> None:
    """A listener that is closed is gone, and with it its connections."""
    result = background.ask()
    background.answer(result, 1)
    value = result.get(timeout=SOON)
    close_listener(background.app)
    wait_until(
        lambda: "" if not background.subscribers() else "heard", [], what="end", timeout=SOON
    )

    assert 1 == value
    assert not is_listening(background.app)


@pytest.mark.parametrize("end", [lambda app: app.close(), close_listener], ids=["app", "listener"])
def test_closed_app_leaves_no_threads(
    redis_server: RedisServer, end: Callable[[Celery], None], monkeypatch: pytest.MonkeyPatch
):
    """An app that is closed, or its listener, ends its threads at once, without waiting."""
    monkeypatch.setattr(threads_of_clients, "IDLE", 100.0)
    names = ("celery-batch-replies", "celery-batch-poll")
    before = {thread for name in names for thread in threads(name)}

    def left() -> str:
        now = {thread for name in names for thread in threads(name)}
        return ", ".join(thread.name for thread in now - before)

    with Celery(backend=redis_server.url, set_as_current=False) as app:
        for _ in range(2):  # the second listener of an app is closed like the first
            assert listener_for(app)
            assert left()
            end(app)
            wait_until(left, [], what="end", timeout=40)

        assert not is_listening(app)


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_outlives_a_listener_that_may_not_begin_again(tmp_path: Path, way: str) -> None:
    """Where Redis has forbidden to listen meanwhile, what is waited for is looked for."""
    with RedisServer(tmp_path / "redis") as server, FakeWorker(server) as background:
        result = background.ask()
        waiting = Waiting(way, result)
        allowed = "&celery-task-meta-*"
        background.redis.execute_command("ACL", "SETUSER", "default", "resetchannels", allowed)
        close_listener(background.app)
        background.store(result, 1)
        answer = waiting.answer()

    assert WAYS[way] == answer
