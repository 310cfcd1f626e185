"""Results of real workers are told to the process that asked, and found where nobody tells."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult

from celery_batch.client.results.listener import listener_for
from celery_batch.client.results.result import BatchResult
from celery_batch.processes.managed_process import wait_until
from tests.conftest import Setup, Worker
from tests.services.shared_setup import SharedSetup, eventually

SOON = 60.0


@pytest.fixture(params=["redis_shared", "rabbitmq_shared", "setup", "rabbit_setup"])
def busy(request: pytest.FixtureRequest) -> Worker:
    """A worker that stores in bulk, or one that stores singly, on each broker."""
    setup: Setup | SharedSetup = request.getfixturevalue(request.param)
    if isinstance(setup, Setup):
        return setup.worker("-c", "1", conf={"batch_bulk": False})
    return setup.worker


def channels(setup: SharedSetup) -> set[str]:
    """Return who listens to what on the results' Redis."""
    with setup.memory() as client:
        names = {name.decode() for name in client.pubsub_channels("celery*")}
    return {name for name in names if "-blank-" not in name}  # of the message that is the template


def test_all_that_one_can_ask(busy: Worker):
    """Single calls, many, groups, chords and chains, awaited or not, all end with their values."""
    setup = busy.setup

    async def awaited() -> list[Any]:
        """Await them one after the other."""
        results = [setup.double.delay(n) for n in range(40)]
        return [await result for result in results]

    one = setup.double.delay(1)
    future = setup.double.delay(2).future()
    many = setup.double.delay_many(range(100))
    members = group(setup.double.s(n) for n in range(50)).apply_async()
    mixed = group([setup.double.s(5), setup.plain.s(5), setup.odd.s("five")]).apply_async()
    body = chord((setup.double.s(n) for n in range(10)), setup.total.s()).apply_async()
    steps = chain(setup.double.s(1), setup.double.s(), setup.plain.s()).apply_async()
    with ThreadPoolExecutor(8) as pool:
        threads = list(pool.map(lambda n: setup.double.delay(n).get(timeout=SOON), range(40)))

    assert isinstance(one, BatchResult)
    assert (2, 4) == (one.get(timeout=SOON), future.result(SOON))
    assert [2 * n for n in range(100)] == [result.get(timeout=SOON) for result in many]
    assert [2 * n for n in range(50)] == members.get(timeout=SOON)
    assert [10, 6, "FIVE"] == mixed.get(timeout=SOON)
    assert (90, 5) == (body.get(timeout=SOON), steps.get(timeout=SOON))
    assert [2 * n for n in range(40)] == threads == asyncio.run(awaited())


def test_one_channel_is_enough(redis_shared: SharedSetup):
    """What is asked of batch tasks subscribes to nothing but the process' own channel."""
    redis_shared.double.delay(0).get(timeout=SOON)
    own = {listener_for(redis_shared.app).channel}
    others = channels(redis_shared) - own  # of other apps that this process has had
    results = [redis_shared.double.delay(n) for n in range(20)]
    results += redis_shared.double.delay_many(range(20))
    members = group(redis_shared.double.s(n) for n in range(20)).apply_async()
    listening = channels(redis_shared)
    [result.get(timeout=SOON) for result in results]
    members.get(timeout=SOON)

    assert own == listening - others == channels(redis_shared) - others


def test_errors_are_celery_s(busy: Worker):
    """A failure is the same error, with the same traceback, in our result as in Celery's."""
    setup = busy.setup
    task_id = str(uuid4())
    options = {"reply": True, "timeout": SOON, "limit": 1, "destination": [busy.name]}
    setup.app.control.revoke(task_id, **options)
    bad, revoked = setup.odd.delay("bad"), setup.odd.apply_async(("unwanted",), task_id=task_id)
    with pytest.raises(ValueError, match="a bad item") as ours:
        bad.get(timeout=SOON)
    stock = AsyncResult(bad.id, app=setup.app)
    with pytest.raises(ValueError, match="a bad item") as theirs:
        stock.get(timeout=SOON)
    error = revoked.get(timeout=SOON, propagate=False)

    assert (type(theirs.value), theirs.value.args) == (type(ours.value), ours.value.args)
    assert (stock.traceback, stock.state) == (bad.traceback, bad.state)
    assert ("TaskRevokedError", "REVOKED") == (type(error).__name__, revoked.state)


def test_stock_client_and_ours_hear_of_one_task(redis_shared: SharedSetup):
    """Celery's own result, waiting for the same task, is told as ever."""
    ours = redis_shared.slow.delay(3)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(AsyncResult(ours.id, app=redis_shared.app).get, timeout=SOON)

        assert (3, 3) == (ours.get(timeout=SOON), theirs.result())


def test_replies_come_before_a_sweep(setup: Setup):
    """Answers are told, not found by looking for them."""
    setup.worker("-c", "1")
    setup.double.delay(0).get(timeout=SOON)
    sweeps = 0
    read = listener_for(setup.app)._store.read

    def spy(task_ids: list[str]) -> Any:
        nonlocal sweeps
        found = read(task_ids)
        sweeps += sum(bool(value) for _, value in found)
        return found

    listener_for(setup.app)._store.read = spy
    began = time.monotonic()
    for n in range(20):
        setup.double.delay(n).get(timeout=SOON)
    took = time.monotonic() - began

    assert sweeps <= 5, took  # some may be looked for just when they come


def test_worker_that_is_killed_costs_no_answer(setup: Setup):
    """Who waits while a worker dies has the answer of the next one."""
    worker = setup.worker("-c", "1")
    results = [setup.slow.delay(n) for n in range(60)]
    results[0].get(timeout=SOON)
    worker.child.stop(0)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(result.get, SOON) for result in results]
        setup.worker("-c", "1")

        assert list(range(60)) == [answer.result() for answer in answers]


def test_connection_of_the_listener_is_cut_under_load(redis_shared: SharedSetup):
    """However often the listener's connection is cut, all results come."""
    with redis_shared.memory() as client, ThreadPoolExecutor(4) as pool:
        results = [redis_shared.slow.delay(n) for n in range(40)]
        answers = [pool.submit(result.get, SOON) for result in results]
        for n in (5, 15, 25):
            wait_until(
                lambda n=n: "" if sum(answer.done() for answer in answers) > n else "not yet",
                [],
                what="answers",
                timeout=SOON,
            )
            client.client_kill_filter(_type="pubsub")
    # The worker's was cut, too: until it has another, a revoke of the next test is lost.
    hears = lambda: not redis_shared.worker.why_not_ready()  # noqa: E731
    eventually(hears, "a worker that receives commands")

    assert list(range(40)) == [answer.result() for answer in answers]
