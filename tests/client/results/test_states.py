"""A task's states as they come: of this process's tasks and of others', in threads and loops."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import denied_join_result

from celery_batch.client.results import pending
from celery_batch.client.results.pending import PendingResults
from celery_batch.client.results.result import BatchResult, EagerBatchResult
from celery_batch.processes.managed_process import wait_until
from celery_batch.protocol import STARTED_ID, write_replies
from tests.services.fake_worker import FakeWorker

SOON = 20.0

WHO = {"pid": 1, "hostname": "w@here"}


def soon(ready: Callable[[], object], what: str) -> None:
    """Return when something is true."""
    wait_until(lambda: "" if ready() else "not yet", [], what=what, timeout=SOON)


def stranger(background: FakeWorker) -> BatchResult:
    """Return the result of a task that another process has sent."""
    return BatchResult(str(uuid4()), app=background.app)


def followers(background: FakeWorker) -> int:
    """Return how many wait for a state."""
    known = list(PendingResults.of(background.app)._known.values())
    return sum(len(reply.state_callbacks or ()) for reply in known)


def tell_start(background: FakeWorker, result: Any) -> None:
    """Say that a task has started, as our workers do for those who ask for it."""
    background.store(result, WHO, states.STARTED)
    stored = background.app.backend.get(background.app.backend.get_key_for_task(result.id))
    for payload in write_replies([(STARTED_ID + result.id, stored)]):
        background.redis.publish(background.listener.channel, payload)


class Followed:
    """A task followed in a thread, or in a coroutine of a loop of its own."""

    def __init__(self, how: str, result: BatchResult) -> None:
        self.seen: list[str] = []
        self._result = result
        run = self._in_a_loop if how == "awaited" else self._in_a_thread
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def _in_a_thread(self) -> None:
        self.seen.extend(self._one_by_one())

    def _one_by_one(self) -> Any:
        for state in self._result.iter_states(SOON):
            self.seen.append(state)
        yield "over"

    def _in_a_loop(self) -> None:
        asyncio.run(self._await())

    async def _await(self) -> None:
        async for state in self._result.iter_states(SOON):
            self.seen.append(state)
        self.seen.append("over")

    def saw(self, *expected: str) -> list[str]:
        """Return what was seen, as soon as it is as much as expected."""
        soon(lambda: len(self.seen) >= len(expected), f"{expected}, not {self.seen}")
        return self.seen


HOWS = pytest.mark.parametrize("how", ["threaded", "awaited"])


@HOWS
@pytest.mark.parametrize("whose", ["told", "found"])
def test_each_state_comes_once(background: FakeWorker, how: str, whose: str):
    """Whoever sent the task, its start, its states in between and its end are yielded in turn."""
    result = background.ask() if whose == "told" else stranger(background)
    followed = Followed(how, result)
    soon(lambda: followers(background) == 1, "a follower")
    if whose == "told":
        tell_start(background, result)
    else:
        background.store(result, WHO, states.STARTED)
    first = list(followed.saw("STARTED"))
    background.store(result, {"done": 50}, "HALF WAY")
    second = list(followed.saw("STARTED", "HALF WAY"))
    background.answer(result, 42)
    last = followed.saw("STARTED", "HALF WAY", "SUCCESS", "over")

    assert (["STARTED"], ["STARTED", "HALF WAY"]) == (first, second)
    assert ["STARTED", "HALF WAY", "SUCCESS", "over"] == last
    assert (42, 0) == (result.get(timeout=SOON), followers(background))


@HOWS
@pytest.mark.parametrize("state", [states.SUCCESS, states.FAILURE, states.REVOKED])
def test_what_has_ended_yields_its_end(background: FakeWorker, how: str, state: str):
    """Who comes late sees how the task has ended, and no more."""
    result = stranger(background)
    background.store(result, 1 if state == states.SUCCESS else ValueError("x"), state)

    assert [state, "over"] == Followed(how, result).saw(state, "over")


@HOWS
def test_large_result_is_an_end(background: FakeWorker, how: str):
    """Of a result too large to be told, the end comes all the same."""
    result = background.ask()
    followed = Followed(how, result)
    soon(lambda: followers(background) == 1, "a follower")
    background.answer(result, "x" * 300_000)

    assert ["SUCCESS", "over"] == followed.saw("SUCCESS", "over")


def test_start_that_was_told_is_not_looked_for(background: FakeWorker):
    """Who has asked hears of the start; also who begins to follow only afterwards."""
    result = background.ask()
    tell_start(background, result)
    soon(lambda: result.pending_result.latest, "news of the start")
    background.redis.delete(background.app.backend.get_key_for_task(result.id))

    assert "STARTED" == next(result.iter_states(SOON))


@HOWS
def test_who_waits_for_long_may_go_on(background: FakeWorker, how: str):
    """When nothing comes in time that is an error, and the next state can be waited for."""
    result = stranger(background)
    following = result.iter_states(0.05)

    async def following_state() -> str:
        """Await the next one."""
        return await anext(following)

    def step() -> str:
        """Wait for the next one."""
        return next(following) if how == "threaded" else asyncio.run(following_state())

    with pytest.raises(CeleryTimeoutError):
        step()
    with pytest.raises(CeleryTimeoutError):
        step()
    background.store(result, WHO, states.STARTED)
    following._timeout = SOON

    assert "STARTED" == step()


def test_cancelled_step_loses_nothing(background: FakeWorker):
    """A step that is given up, for a heartbeat perhaps, leaves nothing and loses nothing."""
    result = stranger(background)

    async def steps() -> tuple[int, list[str]]:
        """Give up once, then see it through."""
        following = result.iter_states()
        try:
            async with asyncio.timeout(0.05):
                await anext(following)
        except TimeoutError:
            PendingResults.of(background.app).poll_all()
            PendingResults.of(background.app).take_due(10)
        left = followers(background)
        await asyncio.to_thread(background.store, result, 1)
        return left, [state async for state in following]

    assert (0, ["SUCCESS"]) == asyncio.run(steps())


def test_dropped_streams_leave_nothing(background: FakeWorker):
    """However a stream ends, nobody waits afterwards, and nothing is kept of its task."""
    registry = PendingResults.of(background.app)
    background.ask()

    async def follow(result: BatchResult) -> None:
        """Follow what never comes."""
        async for _ in result.iter_states():
            pytest.fail("nothing was stored")

    async def drop() -> None:
        """Have many streams, and cancel them all."""
        streams = [asyncio.create_task(follow(stranger(background))) for _ in range(50)]
        await asyncio.to_thread(soon, lambda: followers(background) == len(streams), "all streams")
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    asyncio.run(drop())

    def nothing_is_left() -> bool:
        gc.collect()
        registry.take_due(1)  # the registry forgets here what is collected
        return (followers(background), len(registry)) == (0, 0)

    soon(nothing_is_left, "the end of all that is known of the streams")
    assert float("inf") == registry.next_poll()


def test_a_failed_poll_keeps_nothing(
    background: FakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A log record of the failure, which may be kept, keeps none of the results."""
    registry = PendingResults.of(background.app)
    background.ask()

    def fail(_task_ids: list[str]) -> None:
        raise TimeoutError("too slow")

    monkeypatch.setattr(background.listener._store, "read", fail)
    result = stranger(background)
    registry.add_callback(result.pending_result, fail)
    words = "Cannot poll for results: too slow"
    soon(lambda: words in caplog.text, "a poll that fails")  # others may log as well
    registry.remove_callback(result.pending_result, fail)
    del result

    soon(lambda: gc.collect() >= 0 and not registry, "the end of all that is known of the result")


def test_many_streams_are_one_look(background: FakeWorker, monkeypatch: pytest.MonkeyPatch):
    """A thousand streams cost a few reads each half second, on the connection there is."""
    looked: list[int] = []
    background.ask()
    read = background.listener._store.read

    def spy(task_ids: list[str]) -> Any:
        looked.append(len(task_ids))
        return read(task_ids)

    async def follow(result: BatchResult) -> list[str]:
        """Return its states."""
        return [state async for state in result.iter_states()]

    async def follow_all(results: list[BatchResult]) -> tuple[int, list[list[str]]]:
        """Follow all; return how many reads it takes to look twice at each, and the states."""
        streams = [asyncio.create_task(follow(result)) for result in results]
        await asyncio.to_thread(soon, lambda: followers(background) == len(streams), "all streams")
        soon_after = len(looked)
        twice = 2 * len(results)
        await asyncio.to_thread(soon, lambda: sum(looked[soon_after:]) >= twice, "two looks")
        totals = list(accumulate(looked[soon_after:]))
        reads = next(n for n, total in enumerate(totals, 1) if total >= twice)
        pieces = [results[n : n + 100] for n in range(0, len(results), 100)]
        for piece in pieces:
            values = {
                background.app.backend.get_key_for_task(each.id): json.dumps(
                    {"status": "SUCCESS", "result": 1}
                )
                for each in piece
            }
            await asyncio.to_thread(background.redis.mset, values)
        return reads, await asyncio.gather(*streams)

    before = background.redis.info("clients")["connected_clients"]
    monkeypatch.setattr(background.listener._store, "read", spy)
    reads, seen = asyncio.run(follow_all([stranger(background) for _ in range(1000)]))

    assert [["SUCCESS"]] * 1000 == seen
    assert reads < 20
    assert background.redis.info("clients")["connected_clients"] <= before + 1


def test_unchanged_state_is_not_read_twice(background: FakeWorker, monkeypatch: pytest.MonkeyPatch):
    """What has been seen costs no decoding at the next look."""
    monkeypatch.setattr(pending, "POLL_FOLLOWED", 0.02)
    result = stranger(background)
    following = result.iter_states(SOON)
    background.store(result, WHO, states.STARTED)
    started = next(following)
    judged: list[bytes] = []
    monkeypatch.setattr(background.listener._store, "is_final", judged.append)
    following._timeout = 0.2
    with pytest.raises(CeleryTimeoutError):
        next(following)

    assert ("STARTED", []) == (started, judged)


@HOWS
@pytest.mark.parametrize("how_it_goes", ["forgotten", "expired"])
def test_following_ends_with_the_result(background: FakeWorker, how: str, how_it_goes: str):
    """Who follows what is forgotten, or never comes until its time is over, is let go."""
    if how_it_goes == "expired":
        background.app.conf.result_expires = 1  # each thread has a backend of its own
    result = stranger(background)
    followed = Followed(how, result)
    if how_it_goes == "forgotten":
        background.store(result, WHO, states.STARTED)
        followed.saw("STARTED")
        background.redis.delete(background.app.backend.get_key_for_task(result.id))

    expected = ["STARTED"] * (how_it_goes == "forgotten") + ["over"]
    assert expected == followed.saw(*expected)


@pytest.mark.parametrize("conf", [{"batch_bulk": False}, {"result_backend": "cache+memory://"}])
@HOWS
def test_on_other_backends_celery_s_own_way(background: FakeWorker, how: str, conf: dict[str, Any]):
    """Where nobody tells us, the backend is asked, by everybody for himself."""
    url = background.app.conf.result_backend
    app = Celery("other", broker="memory://", set_as_current=False)
    app.conf.result_backend = url
    app.conf.update(conf)
    result = BatchResult(str(uuid4()), app=app)
    followed = Followed(how, result)
    app.backend.store_result(result.id, WHO, states.STARTED)
    followed.saw("STARTED")
    app.backend.store_result(result.id, 1, states.SUCCESS)
    seen = followed.saw("STARTED", "SUCCESS", "over")
    app.close()

    assert ["STARTED", "SUCCESS", "over"] == seen


def test_redis_that_is_away_is_waited_for(background: FakeWorker):
    """A connection that is cut while a task is followed costs nothing but a moment."""
    result = stranger(background)
    followed = [Followed(how, result) for how in ("threaded", "awaited")]
    soon(lambda: followers(background) == 2, "followers")
    background.redis.client_kill_filter(_type="normal", skipme=True)
    background.redis.client_kill_filter(_type="pubsub", skipme=True)
    background.store(result, 1)

    assert [["SUCCESS", "over"]] * 2 == [each.saw("SUCCESS", "over") for each in followed]


def _follow_in_fork(result: BatchResult, told: Any) -> None:
    told.put(list(result.iter_states(SOON)))


def test_fork_follows_with_an_ear_of_its_own(background: FakeWorker):
    """A process forked while its parent follows can follow the same task."""
    context = multiprocessing.get_context("fork")
    result = stranger(background)
    with ThreadPoolExecutor(1) as pool:
        here = pool.submit(lambda: list(result.iter_states(SOON)))
        soon(lambda: followers(background) == 1, "a follower")
        told = context.SimpleQueue()
        child = context.Process(target=_follow_in_fork, args=(result, told))
        child.start()
        background.store(result, 1)

        assert ["SUCCESS"] == told.get() == here.result(SOON)
        child.join(SOON)


def test_ignored_result_has_no_states(background: FakeWorker):
    """Of a call whose result is ignored nothing is stored, so nothing is waited for."""
    result = stranger(background)
    result.ignored = True

    assert [] == list(result.iter_states())


def test_eager_result_has_the_one_that_it_has():
    """A task that ran at once yields its end, whichever way it is asked."""
    result = EagerBatchResult("id", 1, states.SUCCESS)

    async def all_of(following: AsyncIterator[str]) -> list[str]:
        """Return all states."""
        return [state async for state in following]

    assert ["SUCCESS"] == list(result.iter_states()) == asyncio.run(all_of(result.iter_states()))


def test_tasks_do_not_wait_for_others(background: FakeWorker):
    """Inside a task, to follow another is refused as to wait for it is."""
    with denied_join_result(), pytest.raises(RuntimeError, match="Never call"):
        next(stranger(background).iter_states())
