"""The pool's side of a batch: every item through its own tracer, the model once."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.backends.cache import _DUMMY_CLIENT_CACHE as _CACHE
from celery.utils.functional import noop

from celery_batch import BatchTask
from celery_batch.config import LARGEST_BATCH
from celery_batch.protocol import PAYLOADS
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor import model_call
from celery_batch.worker.executor.executor import run_batch


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose results stay in this process."""
    _CACHE.clear()  # one for the whole process
    with Celery(
        "executor", broker="memory://", backend="cache+memory://", set_as_current=True
    ) as app:
        yield app


def deliver(
    task: Any, *calls: Any, ids: list[str] | None = None, expires: dict[int, Any] | None = None
) -> list[Any]:
    """Run one batch of calls, encoded as they would come from a broker."""
    ids = ids or [f"id{n}" for n in range(len(calls))]
    headers = [_headers(task, task_id) for task_id in ids]
    for place, time in (expires or {}).items():
        headers[place]["expires"] = time.isoformat()
    deliveries = [
        Delivery(task_id, about, json.dumps(_body(call)), "application/json", "utf-8")
        for task_id, about, call in zip(ids, headers, calls, strict=True)
    ]
    return run_batch(task.name, BatchPayload(deliveries)).results


def _headers(task: Any, task_id: str) -> dict[str, Any]:
    return {"id": task_id, "task": task.name, "delivery_info": {}, "root_id": task_id}


def _body(call: Any) -> list[Any]:
    return [[call], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def _error(einfo: Any) -> BaseException:
    """Return an error as the worker's main process unwraps it."""
    return getattr(einfo.exception, "exc", einfo.exception)


def test_a_thousand_items_nest_without_running_out_of_stack(app: Celery):
    """The depth of the tracers grows with the batch, and so does the limit; as far as it may."""

    @app.task(base=BatchTask, max_batch_size=LARGEST_BATCH)
    def many(x):
        return [value + 1 for value in x]

    settled = deliver(many, *range(LARGEST_BATCH))

    assert [(0, str(n + 1)) for n in range(LARGEST_BATCH)] == [
        (failed, shown) for failed, shown, _ in settled
    ]


def test_hook_that_raises_fails_its_own_item(app: Celery):
    """An item whose before_start fails is left out of the batch; the others run."""

    class Hooked(BatchTask):
        def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
            if args == ["hook"]:
                raise RuntimeError("hook")

    ran: list[Any] = []

    @app.task(base=Hooked)
    def hooked(x):
        ran.extend(x)
        return x

    settled = deliver(hooked, "hook", "b", "hook", "d", "hook")

    assert ["b", "d"] == ran
    assert [1, 0, 1, 0, 1] == [failed for failed, _, _ in settled]


def test_same_task_twice_in_a_batch_is_answered_twice(app: Celery):
    """A message that the broker delivers twice may be in a batch twice; both have a result."""

    @app.task(base=BatchTask)
    def again(x):
        return x

    settled = deliver(again, "a", "b", "c", ids=["same", "other", "same"])

    assert ["'a'", "'b'", "'c'"] == [shown for _, shown, _ in settled]


def refuse_to_store(monkeypatch: pytest.MonkeyPatch, task: Any, refused: str) -> None:
    """Let the failure of one item not be stored."""
    mark_as_failure = task.backend.mark_as_failure

    def mark(task_id: str, *args: Any, **options: Any) -> Any:
        if task_id == refused:
            raise ValueError("no way to write this")
        return mark_as_failure(task_id, *args, **options)

    monkeypatch.setattr(type(task.backend), "mark_as_failure", staticmethod(mark))


def test_failure_that_cannot_be_stored_is_its_own(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """An item that cannot be read, nor its failure stored, is left to the worker; others run."""

    @app.task(base=BatchTask)
    def fine(x):
        return x

    refuse_to_store(monkeypatch, fine, "bad")
    bodies = {"a": json.dumps(_body(1)), "bad": "[[1", "b": json.dumps(_body(2))}
    deliveries = [
        Delivery(task_id, _headers(fine, task_id), body, "application/json", "utf-8")
        for task_id, body in bodies.items()
    ]
    settled = run_batch(fine.name, BatchPayload(deliveries)).results

    assert ["1", "2"] == [settled[n][1] for n in (0, 2)]
    assert isinstance(settled[1], ExceptionInfo)
    assert ["SUCCESS", "PENDING", "SUCCESS"] == [app.AsyncResult(name).state for name in bodies]


def test_item_without_its_values_and_with_a_malformed_body_fails_alone(app: Celery):
    """What is embedded in its body may be anything; the others of its batch run."""

    @app.task(base=BatchTask)
    def fine(x):
        return x

    bad = {**_headers(fine, "bad"), PAYLOADS: ["f" * 16, [16], 0]}
    deliveries = [
        Delivery("bad", bad, json.dumps([[1], {}, "no object"]), "application/json", "utf-8"),
        Delivery("a", _headers(fine, "a"), json.dumps(_body(1)), "application/json", "utf-8"),
    ]
    run_batch(fine.name, BatchPayload(deliveries))

    assert ["FAILURE", "SUCCESS"] == [app.AsyncResult(name).state for name in ("bad", "a")]


def test_batch_that_cannot_be_stored_fails_item_by_item(
    app: Celery, monkeypatch: pytest.MonkeyPatch
):
    """If one failure cannot be stored either, the others are stored."""

    @app.task(base=BatchTask)
    def fine(x):
        return x

    @contextmanager
    def broken(_: Any) -> Iterator[None]:
        yield None
        raise ValueError("no way to write these")

    _CACHE.clear()
    monkeypatch.setattr("celery_batch.worker.executor.executor.storing_results", broken)
    monkeypatch.setattr(type(fine.backend), "mark_as_done", lambda *_, **__: None)
    refuse_to_store(monkeypatch, fine, "id1")
    settled = deliver(fine, 1, 2, 3)

    assert ["FAILURE", "PENDING", "FAILURE"] == [app.AsyncResult(f"id{n}").state for n in range(3)]
    assert [1, 1] == [settled[n][0] for n in (0, 2)]
    assert "no way to write these" == str(_error(settled[1]))


def test_what_cannot_be_stored_is_left_to_the_worker(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """A batch raises no error: two of Celery's pools would drop it."""

    @app.task(base=BatchTask)
    def fine(x):
        return x

    def broken(*_: Any, **__: Any) -> None:
        raise PermissionError("no right to write")

    monkeypatch.setattr(type(fine.backend), "_store_result", broken)
    monkeypatch.setattr(type(fine.backend), "mark_as_failure", broken)
    delivery = Delivery("id", _headers(fine, "id"), (["a"], {}, {}), None, None)
    (settled,) = run_batch(fine.name, BatchPayload([delivery])).results

    assert "no right to write" in str(_error(settled))


def test_a_device_stays_broken_whichever_batch_ends_last(
    app: Celery, monkeypatch: pytest.MonkeyPatch
):
    """A batch that began before on another thread ends well, and says nothing else."""
    monkeypatch.setattr(model_call, "_broken", None)

    @app.task(base=BatchTask)
    def breaks(x):  # noqa: ARG001 (it fails before)
        raise RuntimeError("CUDA error: device-side assert triggered")

    @app.task(base=BatchTask)
    def outlasts(x):
        thread = threading.Thread(target=deliver, args=(breaks, 1, 2))
        thread.start()
        thread.join()
        return x

    deliver(outlasts, 3)

    assert "device-side assert" in str(model_call.broken_device())


def test_facts_are_of_the_items_that_ran(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """An expired item has no facts, and the others keep their own."""
    explained: dict[str, Any] = {}
    writer = SimpleNamespace(announce=noop, attach=explained.update)
    place = "celery_batch.worker.executor.executor.storing_results"
    monkeypatch.setattr(place, lambda _task: nullcontext(writer))

    @app.task(base=BatchTask)
    def picky(x):
        if 3 in x and len(x) > 1:
            raise ValueError("not in company")
        return x

    past = datetime.now(UTC) - timedelta(seconds=1)
    headers = [_headers(picky, f"id{n}") for n in range(5)]
    headers[0]["expires"] = past.isoformat()
    deliveries = [
        Delivery(about["id"], about, json.dumps(_body(n)), "application/json", "utf-8", 1.0)
        for n, about in enumerate(headers)
    ]
    run_batch(picky.name, BatchPayload(deliveries))
    sizes = {task_id: json.loads(alike)["size"] for task_id, (alike, _) in explained.items()}

    assert {"id1": 2, "id2": 2, "id3": 1, "id4": 1} == sizes


def test_a_batch_leaves_nothing_to_the_garbage_collector(app: Celery):
    """Rows and outputs may be large: they are freed with the batch, on the device, too."""
    seen: list[ref[Any]] = []

    class Output(str):
        """A text that can be referred to weakly."""

        __slots__ = ("__weakref__",)

    @app.task(base=BatchTask, ignore_result=True)
    def shown(x):
        outputs = [Output(value) for value in x]
        seen.extend(map(ref, outputs))
        return outputs

    deliver(shown, 1, 2, 3)  # what is made once for a task stays
    seen.clear()
    gc.collect()
    gc.disable()
    try:
        deliver(shown, 1, 2, 3)
        alive = [each for each in seen if each() is not None]
    finally:
        gc.enable()

    assert [] == alive
    assert 3 == len(seen)
