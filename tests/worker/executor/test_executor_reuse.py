"""A batch in the pool process some of whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.serialization.row_digest import RowDigest
from celery_batch.telemetry.report import Reuse
from celery_batch.worker.dispatch.follow_up import BatchEnd, Unanswered
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor import model_call
from celery_batch.worker.executor.executor import run_batch, trace_batch
from celery_batch.worker.executor.row_reuse import RowReuse
from celery_batch.worker.redis.answer_cache import Found

PAST = datetime.now(UTC) - timedelta(seconds=60)


class Answers:
    """A cache that knows some answers, in place of one in Redis."""

    def __init__(self, *known: int) -> None:
        digest = RowDigest("reuse")
        self.known = {digest.of((each,)): f"cached {each}" for each in known}
        self.stored: dict[bytes, Any] = {}
        self.ttl = 1.0

    def look_up(self, digests: list[bytes]) -> Found:
        """Return what is known of these."""
        found = {each: self.known[each] for each in digests if each in self.known}
        return Found(found, b"an epoch")

    def store(self, epoch: bytes, answers: list[tuple[bytes, Any]]) -> None:
        """Remember answers."""
        assert b"an epoch" == epoch
        self.stored.update(answers)


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose results stay in this process."""
    with Celery("reuse", broker="memory://", backend="cache+memory://", set_as_current=True) as app:
        yield app


@pytest.fixture
def cache() -> Answers:
    """A cache that knows the answers to 1 and 3."""
    return Answers(1, 3)


@pytest.fixture
def make(app: Celery, cache: Answers) -> Callable[..., Any]:
    """Return what makes a task of a function, which answers from the cache."""

    def make(function: Callable[[list[Any]], Any], **options: Any) -> Any:
        task = app.task(base=BatchTask, name="reuse.task", shared=False, **options)(function)
        app.finalize()
        task = app.tasks[task.name]
        vars(task)["_batch_reuse"] = RowReuse(RowDigest("reuse"), cache)  # type: ignore[arg-type]
        return task

    return make


def payload(task: Any, *numbers: int, expired: set[int] = frozenset()) -> BatchPayload:  # type: ignore[assignment]
    """Return the requests of a batch; some have expired."""
    body = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    deliveries = []
    for place, number in enumerate(numbers):
        about: dict[str, Any] = {"id": f"id{place}", "task": task.name, "delivery_info": {}}
        if place in expired:
            about["expires"] = PAST.isoformat()
        text = json.dumps([[number], {}, body])
        deliveries.append(Delivery(about["id"], about, text, "application/json", "utf-8"))
    return BatchPayload(deliveries)


def run(task: Any, *numbers: int, expired: set[int] = frozenset()) -> BatchEnd:  # type: ignore[assignment]
    """Run a batch."""
    end = run_batch(task.name, payload(task, *numbers, expired=expired))
    assert isinstance(end, BatchEnd)
    return end


def values(task: Any, end: BatchEnd) -> list[Any]:
    """Return what is stored for each request; None for one without an answer."""
    return [
        None if result is None else task.backend.get_task_meta(f"id{place}")["result"]
        for place, result in enumerate(end.results)
    ]


def double(x: list[int]) -> list[int]:
    """Double each number."""
    return [2 * each for each in x]


def test_an_operator_may_turn_reuse_off(make: Callable[..., Any], cache: Answers):
    """The cache alone, or with it that equal rows run once; or change how long answers are kept."""
    calls: list[list[int]] = []

    def record(x: list[int]) -> list[int]:
        calls.append(x)
        return double(x)

    task, stored = make(record), []
    for reuse in ((True, None), (False, None), (False, 60.0)):
        batch = payload(task, 1, 2, 2)
        batch.reuse = reuse
        run_batch(task.name, batch)
        stored.append(len(cache.stored))

    assert [[1, 2], [1, 2, 2], [2]] == calls
    assert ([0, 0, 1], 60.0) == (stored, cache.ttl)


def test_equal_requests_without_a_key_fail(make: Callable[..., Any]):
    """They are one row, which shares no batch; the function is not called with it."""
    called: list[Any] = []
    no_key: Any = []

    def function(x: Any, language: Any = no_key) -> Any:
        called.append(language)
        return x

    task = make(function, batch_by="language")

    assert ["InvalidKey"] * 2 == [type(each).__name__ for each in values(task, run(task, 5, 5))]
    assert not called


def test_only_unknown_rows_run(make: Callable[..., Any], cache: Answers):
    """Each request has its own answer, and the new ones are stored."""
    task = make(double)
    end = run(task, 1, 2, 3, 2, 4)

    assert ["cached 1", 4, "cached 3", 4, 8] == values(task, end)
    assert Reuse(hits=2, misses=2, duplicates=1) == end.work.reuse
    assert 2 == end.work.rows  # from which the speed of the model is learnt
    assert [4, 8] == list(cache.stored.values())


@pytest.mark.parametrize(
    ("expired", "expected"),
    [
        ({0, 1, 2, 3}, [None] * 4),
        ({0}, [None, 4, "cached 3", 4]),
        ({1}, ["cached 1", None, "cached 3", 4]),
        ({1, 3}, ["cached 1", None, "cached 3", None]),
        ({0, 2}, [None, 4, None, 4]),
    ],
    ids=str,
)
def test_expired_requests_are_left_out(
    make: Callable[..., Any], expired: set[int], expected: list[Any]
):
    """Whichever of equal ones expired while they waited for the model, the others are answered."""
    task = make(double)

    assert expected == values(task, run(task, 1, 2, 3, 2, expired=expired))


def test_known_answers_are_sent_although_the_others_fail(make: Callable[..., Any], cache: Answers):
    """An error is that of the rows that ran, and is not stored."""

    def fail(x: list[int]) -> list[int]:
        raise ValueError(x)

    task = make(fail, isolate_failures=False)
    end = run(task, 1, 2, 3)

    assert [0, 1, 0] == [result[0] for result in end.results]  # type: ignore[index]
    assert not cache.stored


def test_a_broken_device_answers_nothing(
    make: Callable[..., Any], cache: Answers, monkeypatch: pytest.MonkeyPatch
):
    """The requests run again, in another process."""
    task = make(double)

    def run_model(call: Any) -> float:
        monkeypatch.setattr(model_call, "_broken", "it is on fire")
        call(None)
        return 0.0

    end = trace_batch(task.name, payload(task, 1, 2), run_model)

    assert isinstance(end, BatchEnd)
    assert ([None, None], Unanswered.NOT_STARTED) == (end.results, end.unanswered)
    assert not cache.stored


def test_an_error_before_the_model_is_that_of_each_request(
    make: Callable[..., Any], cache: Answers
):
    """It reaches all callers, and no answer is stored."""
    task = make(double)

    def run_model(_: Any) -> float:
        raise OSError("no way to the model")

    end = trace_batch(task.name, payload(task, 1, 2), run_model)

    assert isinstance(end, BatchEnd)
    assert [1, 1] == [result[0] for result in end.results]  # type: ignore[index]
    assert not cache.stored
