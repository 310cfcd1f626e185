"""Groups of results that are told to us, alone and among others."""

from __future__ import annotations

import asyncio
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from celery import states
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult, ResultSet

from celery_batch.client.results.pending import PendingResults, SentBy
from celery_batch.client.results.result import BatchGroup, BatchResult, adopt_groups
from celery_batch.processes.managed_process import wait_until
from tests.services.fake_worker import FakeWorker

SOON = 20.0


def plain(background: FakeWorker) -> AsyncResult:
    """Return the result of an ordinary task."""
    return AsyncResult(str(uuid4()), app=background.app)


def members(background: FakeWorker, kind: str) -> list[Any]:
    """Return five results: told to us, ordinary, asked for elsewhere, or of all kinds."""
    foreign = BatchResult(str(uuid4()), app=background.app)
    match kind:
        case "told":
            return background.ask_many(5)
        case "ordinary first":
            return [plain(background), *background.ask_many(2), foreign, plain(background)]
        case "told first":
            return [*background.ask_many(2), plain(background), foreign, *background.ask_many(1)]
    raise ValueError(kind)


def end(background: FakeWorker, result: Any, value: Any) -> None:
    """End a task, told or not."""
    if isinstance(result, BatchResult) and result.pending_result.sent_by is SentBy.THIS:
        background.answer(result, value)
    else:
        background.store(result, value)


KINDS = pytest.mark.parametrize("kind", ["told", "ordinary first", "told first"])
WAYS = {
    "get": lambda group: group.get(timeout=SOON),
    "join": lambda group: group.join(timeout=SOON),
    "join_native": lambda group: group.join_native(timeout=SOON),
    "iter_native": lambda group: [
        meta["result"]
        for _, meta in sorted(
            group.iter_native(timeout=SOON), key=lambda pair: group.results.index(pair[0])
        )
    ],
    "each": lambda group: [result.get(timeout=SOON) for result in group],
}


@KINDS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", ["app", "celery", "set"])
def test_every_way_to_wait_for_a_group(background: FakeWorker, kind: str, way: str, made: str):
    """However a group is made, of whatever, and waited for: all values, in order."""
    results = members(background, kind)
    match made:
        case "app":
            group = background.app.GroupResult("group", results)
        case "celery":
            group = GroupResult("group", results, app=background.app)
        case "set":
            group = ResultSet(results, app=background.app)
    background.app.set_current()
    end(background, results[3], 3)

    def work() -> None:
        time.sleep(0.02)  # let the wait begin; all holds as well if it does not
        for n in (4, 0, 2, 1):
            end(background, results[n], n)

    with ThreadPoolExecutor(1) as pool:  # Celery waits only in the thread that has asked
        pool.submit(work)

        assert list(range(5)) == WAYS[way](group)
    assert group.ready()
    assert 5 == group.completed_count()


@KINDS
def test_group_of_what_is_there_already(background: FakeWorker, kind: str):
    """A group whose members have all ended before it is made is waited for like any other."""
    results = members(background, kind)
    for n, result in enumerate(results):
        end(background, result, n)
    for result in results:
        wait_until(lambda r=result: "" if r.ready() else "not yet", [], what="end", timeout=SOON)
    group = ResultSet(results, app=background.app)

    assert list(range(5)) == group.get(timeout=SOON)
    assert list(range(5)) == background.app.GroupResult("group", results).join_native(timeout=SOON)


def test_group_costs_no_subscription(background: FakeWorker):
    """Members that are told to us are waited for on the one channel."""
    others = set(background.subscribers()) - {
        background.listener.channel
    }  # of apps before this one
    results = background.ask_many(50)
    group = background.app.GroupResult("group", results)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(group.get, SOON)
        wait_until(
            lambda: "" if results[-1].pending_result.callbacks else "not yet",
            [],
            what="wait",
            timeout=SOON,
        )
        channels = list(background.subscribers())
        for n, result in enumerate(results):
            background.answer(result, n)

        assert list(range(50)) == answer.result(SOON)
    assert {background.listener.channel} == set(channels) - others


def test_members_that_nobody_told_of_are_found_together(background: FakeWorker):
    """One sweep finds all members of a group whose notifications were missed."""
    results = background.ask_many(40)
    group = background.app.GroupResult("group", results)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(group.get, SOON)
        for n, result in enumerate(results):
            background.store(result, n)

        assert list(range(40)) == answer.result(SOON)
    assert time.monotonic() - began < 25.0  # 36 seconds by a sweep for each


def test_first_error_ends_the_wait(background: FakeWorker):
    """A group raises its first error at once, while others still run, as in Celery."""
    results = background.ask_many(3)
    group = background.app.GroupResult("group", results)
    background.answer(results[2], ValueError("bad"), states.FAILURE)
    error = ""
    try:
        group.get(timeout=SOON)
    except ValueError as caught:
        error = str(caught)
    PendingResults.of(background.app).poll_all()

    assert "bad" == error
    assert [] == PendingResults.of(background.app).take_due(10)


def test_errors_can_be_returned(background: FakeWorker):
    """With propagate=False errors are among the values; callbacks are called as members end."""
    results = background.ask_many(3)
    group = background.app.GroupResult("group", results)
    order: list[str] = []
    background.answer(results[1], ValueError("bad"), states.FAILURE)
    background.answer(results[0], 0)
    background.answer(results[2], 2)
    values = group.get(timeout=SOON, propagate=False)
    group.get(timeout=SOON, propagate=False, callback=lambda task_id, _: order.append(task_id))

    assert [0, "ValueError('bad')", 2] == [values[0], repr(values[1]), values[2]]
    assert {result.id for result in results} == set(order)


def test_group_can_be_waited_for_in_another_thread(background: FakeWorker):
    """Members that are told to us are heard of in any thread, where Celery would wait in vain."""
    results = background.ask_many(3)
    group = background.app.GroupResult("group", results)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(group.get, SOON)
        for n, result in enumerate(results):
            background.answer(result, n)

        assert [0, 1, 2] == answer.result(SOON)


def test_group_gives_up_in_time(background: FakeWorker):
    """A group that takes too long raises Celery's TimeoutError."""
    results = background.ask_many(2)
    background.answer(results[0], 1)
    with pytest.raises(CeleryTimeoutError):
        background.app.GroupResult("group", results).get(timeout=0.1)


def test_then_of_a_group(background: FakeWorker):
    """A group's callback is called when its last member has ended, with nobody waiting."""
    results = background.ask_many(3)
    group = background.app.GroupResult("group", results)
    called: list[Any] = []
    group.then(called.append)
    for n, result in enumerate(results):
        background.answer(result, n)
    wait_until(lambda: "" if called else "not yet", [], what="callback", timeout=SOON)

    assert [group] == called


def test_progress_of_members(background: FakeWorker):
    """With on_message a group is waited for in Celery's way, which tells of every state."""
    results = background.ask_many(2)
    group = background.app.GroupResult("group", results)
    keys = {f"celery-task-meta-{each.id}" for each in results}
    heard: list[str] = []

    def work() -> None:
        wait_until(
            lambda: "" if keys <= set(background.subscribers()) else "not yet",
            [],
            what="subscriptions",
            timeout=SOON,
        )
        background.store(results[0], {"done": 1}, "PROGRESS")
        for result in results:
            background.answer(result, 1)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)

        assert [1, 1] == group.get(SOON, on_message=lambda meta: heard.append(meta["status"]))
    assert ["PROGRESS", "SUCCESS", "SUCCESS"] == heard


def test_saved_group_is_restored(background: FakeWorker):
    """A group can be saved, restored and pickled; whoever has it then waits in Celery's way."""
    background.app.set_current()
    results = background.ask_many(2)
    group = background.app.GroupResult(str(uuid4()), results)
    group.save()
    restored = background.app.GroupResult.restore(group.id)
    thawed = pickle.loads(pickle.dumps(group))  # noqa: S301 (our own)
    for n, result in enumerate(results):
        background.answer(result, n)

    assert [group] * 2 == [restored, thawed]
    assert isinstance(group, BatchGroup)
    assert [0, 1] == restored.get(timeout=SOON) == thawed.get(timeout=SOON)
    assert group.as_tuple() == restored.as_tuple()


def test_many_members_awaited(background: FakeWorker):
    """Members of a group can be awaited together."""
    results = background.ask_many(20)

    async def one(result: BatchResult) -> Any:
        """Await one of them."""
        return await result

    async def everybody() -> list[Any]:
        """Await all of them."""
        waiting = [asyncio.create_task(one(result)) for result in results]
        await asyncio.sleep(0)
        for n, result in enumerate(results):
            background.answer(result, n)
        return await asyncio.gather(*waiting)

    assert list(range(20)) == asyncio.run(everybody())


def test_app_s_own_class_of_groups_is_kept(redis_server: Any):
    """An app that has a class of its own for groups keeps it."""
    with FakeWorker(redis_server) as background:

        class Own(GroupResult):
            pass

        own = background.app.GroupResult = background.app.subclass_with_self(
            Own, reverse="GroupResult"
        )

        adopt_groups(background.app)

        assert own is background.app.GroupResult
