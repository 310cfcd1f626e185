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

from celery_batch.cli.child import wait_until
from celery_batch.client.group import BatchGroup
from celery_batch.client.inbox import inbox_of
from celery_batch.client.result import BatchResult
from tests.services.teller import Teller

SOON = 20.0


def plain(teller: Teller) -> AsyncResult:
    """Return the result of an ordinary task."""
    return AsyncResult(str(uuid4()), app=teller.app)


def members(teller: Teller, kind: str) -> list[Any]:
    """Return five results: told to us, ordinary, asked for elsewhere, or of all kinds."""
    foreign = BatchResult(str(uuid4()), app=teller.app)
    match kind:
        case "told":
            return teller.ask_many(5)
        case "ordinary first":
            return [plain(teller), *teller.ask_many(2), foreign, plain(teller)]
        case "told first":
            return [*teller.ask_many(2), plain(teller), foreign, *teller.ask_many(1)]
    raise ValueError(kind)


def end(teller: Teller, result: Any, value: Any) -> None:
    """End a task, told or not."""
    if isinstance(result, BatchResult) and result.reply.is_told:
        teller.answer(result, value)
    else:
        teller.store(result, value)


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
def test_every_way_to_wait_for_a_group(teller: Teller, kind: str, way: str, made: str):
    """However a group is made, of whatever, and waited for: all values, in order."""
    results = members(teller, kind)
    match made:
        case "app":
            group = teller.app.GroupResult("group", results)
        case "celery":
            group = GroupResult("group", results, app=teller.app)
        case "set":
            group = ResultSet(results, app=teller.app)
    teller.app.set_current()
    end(teller, results[3], 3)

    def work() -> None:
        time.sleep(0.02)  # let the wait begin; all holds as well if it does not
        for n in (4, 0, 2, 1):
            end(teller, results[n], n)

    with ThreadPoolExecutor(1) as pool:  # Celery waits only in the thread that has asked
        pool.submit(work)

        assert list(range(5)) == WAYS[way](group)
    assert group.ready()
    assert 5 == group.completed_count()


@KINDS
def test_group_of_what_is_there_already(teller: Teller, kind: str):
    """A group whose members have all ended before it is made is waited for like any other."""
    results = members(teller, kind)
    for n, result in enumerate(results):
        end(teller, result, n)
    for result in results:
        wait_until(lambda r=result: "" if r.ready() else "not yet", [], what="end", timeout=SOON)
    group = ResultSet(results, app=teller.app)

    assert list(range(5)) == group.get(timeout=SOON)
    assert list(range(5)) == teller.app.GroupResult("group", results).join_native(timeout=SOON)


def test_group_costs_no_subscription(teller: Teller):
    """Members that are told to us are waited for on the one channel."""
    others = set(teller.subscribers()) - {teller.listener.channel}  # of apps before this one
    results = teller.ask_many(50)
    group = teller.app.GroupResult("group", results)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(group.get, SOON)
        wait_until(
            lambda: "" if results[-1].reply.watchers else "not yet", [], what="wait", timeout=SOON
        )
        channels = list(teller.subscribers())
        for n, result in enumerate(results):
            teller.answer(result, n)

        assert list(range(50)) == answer.result(SOON)
    assert {teller.listener.channel} == set(channels) - others


def test_members_that_nobody_told_of_are_found_together(teller: Teller):
    """One sweep finds all members of a group whose notifications were missed."""
    results = teller.ask_many(40)
    group = teller.app.GroupResult("group", results)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(group.get, SOON)
        for n, result in enumerate(results):
            teller.store(result, n)

        assert list(range(40)) == answer.result(SOON)
    assert time.monotonic() - began < 25.0  # 36 seconds by a sweep for each


def test_first_error_ends_the_wait(teller: Teller):
    """A group raises its first error at once, while others still run, as in Celery."""
    results = teller.ask_many(3)
    group = teller.app.GroupResult("group", results)
    teller.answer(results[2], ValueError("bad"), states.FAILURE)
    error = ""
    try:
        group.get(timeout=SOON)
    except ValueError as caught:
        error = str(caught)
    inbox_of(teller.app).look_again()

    assert "bad" == error
    assert [] == inbox_of(teller.app).take(10)


def test_errors_can_be_returned(teller: Teller):
    """With propagate=False errors are among the values; callbacks are called as members end."""
    results = teller.ask_many(3)
    group = teller.app.GroupResult("group", results)
    order: list[str] = []
    teller.answer(results[1], ValueError("bad"), states.FAILURE)
    teller.answer(results[0], 0)
    teller.answer(results[2], 2)
    values = group.get(timeout=SOON, propagate=False)
    group.get(timeout=SOON, propagate=False, callback=lambda task_id, _: order.append(task_id))

    assert [0, "ValueError('bad')", 2] == [values[0], repr(values[1]), values[2]]
    assert {result.id for result in results} == set(order)


def test_group_can_be_waited_for_in_another_thread(teller: Teller):
    """Members that are told to us are heard of in any thread, where Celery would wait in vain."""
    results = teller.ask_many(3)
    group = teller.app.GroupResult("group", results)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(group.get, SOON)
        for n, result in enumerate(results):
            teller.answer(result, n)

        assert [0, 1, 2] == answer.result(SOON)


def test_group_gives_up_in_time(teller: Teller):
    """A group that takes too long raises Celery's TimeoutError."""
    results = teller.ask_many(2)
    teller.answer(results[0], 1)
    with pytest.raises(CeleryTimeoutError):
        teller.app.GroupResult("group", results).get(timeout=0.1)


def test_then_of_a_group(teller: Teller):
    """A group's callback is called when its last member has ended, with nobody waiting."""
    results = teller.ask_many(3)
    group = teller.app.GroupResult("group", results)
    called: list[Any] = []
    group.then(called.append)
    for n, result in enumerate(results):
        teller.answer(result, n)
    wait_until(lambda: "" if called else "not yet", [], what="callback", timeout=SOON)

    assert [group] == called


def test_progress_of_members(teller: Teller):
    """With on_message a group is waited for in Celery's way, which tells of every state."""
    results = teller.ask_many(2)
    group = teller.app.GroupResult("group", results)
    keys = {f"celery-task-meta-{each.id}" for each in results}
    heard: list[str] = []

    def work() -> None:
        wait_until(
            lambda: "" if keys <= set(teller.subscribers()) else "not yet",
            [],
            what="subscriptions",
            timeout=SOON,
        )
        teller.store(results[0], {"done": 1}, "PROGRESS")
        for result in results:
            teller.answer(result, 1)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)

        assert [1, 1] == group.get(SOON, on_message=lambda meta: heard.append(meta["status"]))
    assert ["PROGRESS", "SUCCESS", "SUCCESS"] == heard


def test_saved_group_is_restored(teller: Teller):
    """A group can be saved, restored and pickled; whoever has it then waits in Celery's way."""
    teller.app.set_current()
    results = teller.ask_many(2)
    group = teller.app.GroupResult(str(uuid4()), results)
    group.save()
    restored = teller.app.GroupResult.restore(group.id)
    thawed = pickle.loads(pickle.dumps(group))  # noqa: S301 (our own)
    for n, result in enumerate(results):
        teller.answer(result, n)

    assert [group] * 2 == [restored, thawed]
    assert isinstance(group, BatchGroup)
    assert [0, 1] == restored.get(timeout=SOON) == thawed.get(timeout=SOON)
    assert group.as_tuple() == restored.as_tuple()


def test_many_members_awaited(teller: Teller):
    """Members of a group can be awaited together."""
    results = teller.ask_many(20)

    async def one(result: BatchResult) -> Any:
        """Await one of them."""
        return await result

    async def everybody() -> list[Any]:
        """Await all of them."""
        waiting = [asyncio.create_task(one(result)) for result in results]
        await asyncio.sleep(0)
        for n, result in enumerate(results):
            teller.answer(result, n)
        return await asyncio.gather(*waiting)

    assert list(range(20)) == asyncio.run(everybody())


def test_app_s_own_class_of_groups_is_kept(redis_server: Any):
    """An app that has a class of its own for groups keeps it."""
    with Teller(redis_server) as teller:

        class Own(GroupResult):
            pass

        own = teller.app.GroupResult = teller.app.subclass_with_self(Own, reverse="GroupResult")

        assert teller.listener
        assert own is teller.app.GroupResult
