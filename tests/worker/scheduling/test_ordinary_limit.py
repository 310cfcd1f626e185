"""How many ordinary tasks a worker of batch tasks holds, and which lists it leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state

from celery_batch.worker.bulk import BulkPath
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.redis.fetch import FetchPlan, QueueLists
from celery_batch.worker.scheduling.prefetch import OrdinaryLimit
from tests.worker.doubles import Worker


class NamedRequest:
    """A request, as far as its name goes."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def consumer(app: Celery) -> Any:
    """A consumer of two processes whose multiplier of 3 was raised to 100."""
    controller = SimpleNamespace(prefetch_multiplier=3, max_concurrency=None)
    WorkerContext.of(controller).tasks = [app.tasks["pairs"]]
    return SimpleNamespace(
        app=app,
        controller=controller,
        prefetch_multiplier=100,
        initial_prefetch_count=200,
        pool=SimpleNamespace(num_processes=2),
    )


@pytest.fixture
def limit(consumer: Any) -> OrdinaryLimit:
    """The limit of that consumer, where `pairs` is the batch task."""
    return OrdinaryLimit(consumer, {"pairs"})


def test_an_eta_counts_from_then_on(limit: OrdinaryLimit):
    """What has been acknowledged before, or never came, does not."""
    for tag in "abc":
        limit.add(tag, {"task": "a", "eta": "2050-01-01"})
    limit.add("now", {"task": "a", "eta": None})
    limit.discard("b")

    assert 5 == limit.left()

    for tag in "abx":
        limit.eta_has_come(tag)

    assert 4 == limit.left()

    limit.discard("a")

    assert 5 == limit.left()


def test_disabled_prefetch_counts_what_runs(consumer: Any, monkeypatch: pytest.MonkeyPatch):
    """An ordinary task that has begun holds its process, though it is acknowledged."""
    consumer.app.conf.worker_disable_prefetch = True
    requests = type(state.reserved_requests)()
    monkeypatch.setattr("celery_batch.worker.scheduling.prefetch.reserved_requests", requests)
    limit = OrdinaryLimit(consumer, {"pairs"})
    reserved = [NamedRequest(name) for name in ("a", "pairs", "pairs")]
    for each in reserved:
        requests.add(each)

    assert 1 == limit.left()

    consumer.controller.max_concurrency = 4

    assert 3 == limit.left()


def test_disabled_prefetch_counts_what_waits_for_its_rate_limit(
    consumer: Any, monkeypatch: pytest.MonkeyPatch
):
    """Celery has not reserved these requests, so the multiplier is a limit, too."""
    consumer.app.conf.worker_disable_prefetch = True
    requests = type(state.reserved_requests)()
    monkeypatch.setattr("celery_batch.worker.scheduling.prefetch.reserved_requests", requests)
    limit = OrdinaryLimit(consumer, {"pairs"})
    for tag in range(5):
        limit.add(str(tag), {"task": "a"})

    assert 1 == limit.left()

    WorkerContext.of(consumer.controller).user_prefetch = 0

    assert 2 == OrdinaryLimit(consumer, {"pairs"}).left()


@pytest.mark.parametrize("method", ["apply_eta_task", "_limit_post_eta"])
def test_an_eta_that_has_come_counts_with_a_rate_limit_too(
    limit: OrdinaryLimit, consumer: Any, worker: Worker, method: str
):
    """Celery has a timer call another method for these."""
    applied: list[Any] = []
    vars(consumer).update(
        apply_eta_task=lambda *args: applied.append(args),
        _limit_post_eta=lambda *args: applied.append(args),
        connection_for_read=None,
        connection_errors=(),
    )
    path = BulkPath(consumer, worker.scheduler, None)  # type: ignore[arg-type]
    path._ordinary = limit
    limit.add("tag", {"task": "a", "eta": "2050-01-01"})
    request = SimpleNamespace(message=SimpleNamespace(delivery_tag="tag"))
    before = limit.left()
    getattr(consumer, method)(request, "bucket", 1)

    assert (6, 5) == (before, limit.left())
    assert [(request, "bucket", 1)] == applied


def test_ordinary_tasks_are_not_counted_where_no_list_is_blocked(lists: QueueLists):
    """An event loop's pass may come each millisecond, with thousands of requests to count."""
    counted: list[int] = []
    ordinary: Any = SimpleNamespace(left=lambda: counted.append(0) or 0)
    names = lists.all()
    lists.note_fetch(FetchPlan(names, names, 64, ""), 10.0)
    lists.unblock(10.5, ordinary)

    assert [] == counted

    lists.note_blocked(range(1, 5))
    lists.unblock(10.5, ordinary)

    assert [0] == counted
    assert lists.is_idle

    lists.unblock(11.0, ordinary)  # another worker may have taken the message

    assert not lists.is_idle


def test_guaranteed_places_are_read_although_the_more_urgent_list_is_blocked(
    lists: QueueLists, monkeypatch: pytest.MonkeyPatch
):
    """Nothing else of these lists can be used."""
    lists._channel.active_queues = ["mail"]
    monkeypatch.setattr(lists._limits, "usable", lambda *_: [5, 0])
    monkeypatch.setattr(lists._limits, "guaranteed", lambda *_: [0, 3])
    lists.note_fetch(FetchPlan(["mail0"], ["mail"], 64, ""), 10.0)
    lists.note_blocked([1])

    assert (["mail6"], ["mail"], 64, "3") == lists.plan(64, 64)


@pytest.fixture
def lists(worker: Worker) -> QueueLists:
    """The lists of two queues, of two priorities each."""
    channel = SimpleNamespace(
        active_queues=["mail", "pairs"],
        priority_steps=[0, 6],
        global_keyprefix="",
        _q_for_pri=lambda queue, step: f"{queue}{step}",
    )
    pop: Any = SimpleNamespace(queues=lambda: channel.active_queues)
    return QueueLists(channel, pop, worker.scheduler)
