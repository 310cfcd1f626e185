"""Each batch of a threads pool of one thread is reported once, whatever models and hooks do."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, _state
from celery.concurrency.thread import TaskPool
from celery.exceptions import WorkerShutdown

from celery_batch import BatchTask
from celery_batch.batching.batch import Reason
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.executor import run_batch
from celery_batch.worker.executor.thread_pipeline import overlap_in
from tests.services.shared_setup import eventually

SOON = 60.0


class Held(BatchTask):
    """Waits in its model for the event that the worker of a test sets, and records its thread."""

    #: The names of the threads of the models, and of what comes after them.
    models: SimpleQueue[str]
    hooks: SimpleQueue[str]
    #: The names of the batches, and of ordinary jobs, as they began.
    entered: SimpleQueue[str]
    may_run: threading.Event

    def before_start(self, task_id: str, *_: Any) -> None:
        """Record the batch."""
        self.entered.put(task_id)

    def on_success(self, *_: Any) -> None:
        """Record the thread."""
        self.hooks.put(threading.current_thread().name)
        if self.request.id == "exits after":
            sys.exit(3)


class Pool:
    """
    A started pool, and what it has reported.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Celery) -> None:
        self.pool = TaskPool(1)
        overlap_in(self.pool, app)
        self.pool.start()
        self.starts: SimpleQueue[str] = SimpleQueue()
        self.ends: SimpleQueue[tuple[str, Any]] = SimpleQueue()

        @app.task(base=Held, shared=False, acks_late=True)
        def held(batch):
            held.models.put(threading.current_thread().name)
            assert held.may_run.wait(SOON)
            if "exit" in batch:
                sys.exit(3)
            if "shut down" in batch:
                raise WorkerShutdown
            return batch

        held.models, held.hooks, held.entered = SimpleQueue(), SimpleQueue(), SimpleQueue()
        held.may_run = threading.Event()
        self.task = held

    def send(
        self,
        name: str,
        value: Any = 1,
        *,
        reason: str = "",
        is_lone: bool = False,
        on_accepted: Any = None,
    ) -> Any:
        """Submit a batch of one."""
        headers = {"id": name, "task": self.task.name, "delivery_info": {}}
        payload = BatchPayload(
            [Delivery(name, headers, [[value], {}, {}], None, None)], reason=reason, is_lone=is_lone
        )

        def accepted(pid: int, _time: float, **_: Any) -> Any:
            self.starts.put((name, pid))
            return None if on_accepted is None else on_accepted(payload)

        return self.pool.apply_async(
            run_batch,
            (self.task.name, payload, None),
            accept_callback=accepted,
            callback=partial(self._report, name),
        )

    def _report(self, name: str, end: Any) -> None:
        if name == "cannot be reported":
            raise OSError(name)
        self.ends.put((name, end))

    def send_ordinary(self, name: str) -> None:
        """Submit a job that is no batch, and waits as the model does."""

        def run() -> str:
            self.task.entered.put(name)
            assert self.task.may_run.wait(SOON)
            return threading.current_thread().name

        self.pool.apply_async(run, callback=partial(self._report, name))

    def next_end(self) -> tuple[str, Any]:
        """Return the name of the next job that has ended, and its results or its error."""
        name, end = self.ends.get(timeout=SOON)
        if isinstance(end, ExceptionInfo):
            return name, type(end.exception.exc).__name__
        if isinstance(end, str):
            return name, end
        return name, [result and result[:2] for result in end.results]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool of one thread, whose app is the default one of all threads."""
    interval = sys.getswitchinterval()
    options = {"broker": "memory://", "backend": "cache+memory://", "set_as_current": True}
    with Celery("threads", **options) as app:
        monkeypatch.setattr(_state, "default_app", app)
        pool = Pool(app)
        yield pool
        pool.task.may_run.set()
        pool.pool.stop()
    sys.setswitchinterval(interval)


def test_models_run_on_the_pool_s_thread_and_hooks_beside_it(pool: Pool):
    """Batches are accepted one after another, by this process."""
    for name in ("a", "b", "c"):
        pool.send(name)
    pool.task.may_run.set()

    ends = sorted(pool.next_end() for _ in range(3))
    assert [(name, [(0, "1")]) for name in ("a", "b", "c")] == ends
    assert [(name, os.getpid()) for name in ("a", "b", "c")] == [
        pool.starts.get(timeout=SOON) for _ in range(3)
    ]
    assert 1 == len({pool.task.models.get_nowait() for _ in range(3)})
    assert all(pool.task.hooks.get_nowait().startswith("batch-worker") for _ in range(3))


@pytest.mark.parametrize("how", [{"is_lone": True}, {"reason": Reason.ALONE}])
def test_a_batch_that_is_alone_stays_on_one_thread(pool: Pool, how: dict[str, Any]):
    """A lone batch has nothing beside it, and a suspect must not."""
    pool.task.may_run.set()
    pool.send("a", **how)

    assert ("a", [(0, "1")]) == pool.next_end()
    assert pool.task.models.get_nowait() == pool.task.hooks.get_nowait()


def test_an_ordinary_job_runs_when_all_is_finished(pool: Pool):
    """And what comes after it is not prepared before it has run."""
    pool.send("a")
    assert pool.task.models.get(timeout=SOON)
    pool.send_ordinary("plain")
    pool.send("b")
    pool.task.may_run.set()
    ends = [pool.next_end() for _ in range(3)]

    assert ["a", "plain", "b"] == [name for name, _ in ends]
    assert pool.task.models.get_nowait() == ends[1][1]
    assert ["a", "plain", "b"] == [pool.task.entered.get_nowait() for _ in range(3)]


def test_what_is_revoked_after_it_was_prepared_does_not_run(pool: Pool):
    """It is returned without an outcome."""

    def revoke(payload: BatchPayload) -> None:
        payload.revoked = {"a"}

    pool.task.may_run.set()
    pool.send("a", on_accepted=revoke)

    assert ("a", [None]) == pool.next_end()
    assert pool.task.models.empty()


@pytest.mark.parametrize(("name", "value"), [("exits", "exit"), ("exits after", 1)])
def test_a_model_or_a_hook_that_exits_fails_its_batch(pool: Pool, name: str, value: Any):
    """The thread goes on with the next one."""
    pool.task.may_run.set()
    pool.send(name, value)
    pool.send("b")
    ends = dict(pool.next_end() for _ in range(2))

    assert {name: "WorkerLostError", "b": [(0, "1")]} == ends


@pytest.mark.parametrize("error", [None, WorkerShutdown()])
def test_starts_are_announced_while_the_model_runs(
    pool: Pool, caplog: pytest.LogCaptureFixture, error: BaseException | None
):
    """The device does not wait for it; an error is logged, and the batch goes on."""
    reported: SimpleQueue[str] = SimpleQueue()

    def report() -> None:
        reported.put(threading.current_thread().name)
        if error is not None:
            raise error

    pool.send("a", on_accepted=lambda _: report)
    model = pool.task.models.get(timeout=SOON)

    assert model != reported.get(timeout=SOON)
    pool.task.may_run.set()
    assert ("a", [(0, "1")]) == pool.next_end()
    assert reported.empty()
    logged = lambda: "Could not report the start of a batch" in caplog.text  # noqa: E731
    if error is None:
        assert not logged()
    else:  # on a thread, a moment later
        eventually(logged, "the error in the log")


def test_what_was_revoked_behind_an_ordinary_job_is_not_prepared(pool: Pool):
    """A batch that nothing may be prepared beside is accepted first, which leaves that out."""
    pool.send_ordinary("plain")
    pool.send("a", on_accepted=lambda payload: payload.clear())
    pool.task.may_run.set()

    assert ["plain", "a"] == [pool.next_end()[0] for _ in range(2)]
    assert "plain" == pool.task.entered.get_nowait()
    assert pool.task.entered.empty()


def test_a_batch_that_cannot_be_accepted_fails_alone(pool: Pool):
    """The one before it is finished, and the next one runs."""

    def fail(_: BatchPayload) -> None:
        raise OSError("no connection")

    pool.send("a")
    pool.send("b", on_accepted=fail)
    pool.send("c")
    pool.task.may_run.set()
    ends = dict(pool.next_end() for _ in range(3))

    assert {"a": [(0, "1")], "b": "WorkerLostError", "c": [(0, "1")]} == ends


def test_a_stop_that_is_interrupted_leaves_no_thread_behind(pool: Pool):
    """What runs is finished, though the pool's own stop does not return."""
    pool.send("a")
    pool.send("b")
    assert {"a", "b"} == {pool.task.entered.get(timeout=SOON) for _ in range(2)}
    pool.pool.executor.shutdown(wait=False, cancel_futures=True)
    pool.task.may_run.set()

    assert ("a", [(0, "1")]) == pool.next_end()


def test_a_worker_that_the_model_stops_reports_no_end(pool: Pool):
    """The requests go back to the broker."""
    pool.task.may_run.set()
    result = pool.send("a", "shut down")

    with pytest.raises(WorkerShutdown):
        result.get(timeout=SOON)
    pool.send("b")
    assert ("b", [(0, "1")]) == pool.next_end()


def test_a_report_that_fails_holds_up_nothing(pool: Pool, caplog: pytest.LogCaptureFixture):
    """It is logged."""
    pool.task.may_run.set()
    pool.send("cannot be reported")
    pool.send("b")

    assert ("b", [(0, "1")]) == pool.next_end()
    pool.pool.stop()
    assert "Could not report the end of a batch" in caplog.text


def test_a_pool_that_stops_finishes_what_runs_and_drops_what_waits(pool: Pool):
    """No thread is left that waits for a model call which never comes."""
    pool.send("a")
    waiting = pool.send("b")
    assert {"a", "b"} == {pool.task.entered.get(timeout=SOON) for _ in range(2)}
    cancelled = threading.Event()
    waiting.f.add_done_callback(lambda _: cancelled.set())
    stopping = threading.Thread(target=pool.pool.stop)
    stopping.start()
    assert cancelled.wait(SOON)
    pool.task.may_run.set()
    stopping.join(SOON)

    assert not stopping.is_alive()
    assert ("a", [(0, "1")]) == pool.next_end()
    assert pool.ends.empty()
    assert 1 == pool.starts.qsize()
    assert not [each for each in threading.enumerate() if each.name.startswith("batch-worker")]


def test_a_pool_that_is_terminated_leaves_no_thread_behind(pool: Pool):
    """As that of an embedded worker: what runs is finished, and what waits is dropped."""
    pool.send("a")
    pool.send("b")
    assert {"a", "b"} == {pool.task.entered.get(timeout=SOON) for _ in range(2)}
    pool.pool.terminate()
    threads = [each for each in threading.enumerate() if each.name.startswith("batch-worker")]
    pool.task.may_run.set()

    assert ("a", [(0, "1")]) == pool.next_end()
    for thread in threads:
        thread.join(SOON)
    assert not any(thread.is_alive() for thread in threads)
    assert (0, 1) == (pool.ends.qsize(), pool.starts.qsize())


def test_batches_of_several_threads_do_not_overlap():
    """Their models run at once."""
    with Celery("threads", broker="memory://", set_as_current=False) as app:
        pool = TaskPool(2)
        before = pool.on_apply
        overlap_in(pool, app)

        assert before == pool.on_apply
        pool.stop()
