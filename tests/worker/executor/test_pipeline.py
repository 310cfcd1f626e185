"""Each batch of a pool process is reported once, whatever hooks and models do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.pool import READY, SIG_SOFT_TIMEOUT, TASK, soft_timeout_sighandler
from celery import Celery, _state
from celery.app.trace import build_tracer

from celery_batch import BatchTask
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.executor import run_batch
from celery_batch.worker.executor.job_reader import _Reads
from celery_batch.worker.executor.pipeline import _WorkerThreads

PIPE = 7


class Process:
    """What the worker threads use of billiard's worker, and its loop."""

    def __init__(self, app: Celery) -> None:
        self.maxtasks, self.inqW_fd = None, PIPE
        self.jobs: SimpleQueue[Any] = SimpleQueue()
        reader, self.writer = Pipe(duplex=False)
        self.inq = SimpleNamespace(_reader=reader)
        self.messages: SimpleQueue[Any] = SimpleQueue()
        self.outq = SimpleNamespace(put=self.messages.put, send_payload=self.messages.put)
        self.worker_threads = _WorkerThreads(app, self)
        self.worker_threads.start()

    def why_threads_read(self) -> str:
        """Return "" if worker threads have stopped reading."""
        reading = self.worker_threads._reader._reads is _Reads.THREADS
        return "worker threads read" if reading else ""

    def wait_for_job(self) -> Any:
        """Return the next job; raise what ends the process."""
        self.inq._reader.recv_bytes()
        job = self.jobs.get()
        if isinstance(job, BaseException):
            raise job
        return job

    def _ensure_messages_consumed(self, completed: int) -> bool:  # noqa: ARG002 (billiard's)
        return True

    def send(
        self,
        task: Any,
        number: int,
        *,
        is_lone: bool = False,
        soft_limit: float | None = None,
        urgency: int = 0,
    ) -> None:
        """Write a batch of one into the process."""
        name = f"id{number}"
        headers = {"id": name, "task": task.name, "delivery_info": {}}
        delivery = Delivery(name, headers, [[number], {}, {}], None, None)
        payload = BatchPayload([delivery], precedence=(urgency, 0.0), is_lone=is_lone)
        self.write((TASK, (number, 0, run_batch, (task.name, payload, soft_limit), {})))

    def write(self, job: Any) -> None:
        """Write something into the process."""
        self.jobs.put(job)
        self.writer.send_bytes(b"job")

    def run_next(self) -> None:
        """Run a job as billiard's loop does."""
        while not (found := self.wait_for_job()):
            pass
        _, (job, index, function, args, kwargs) = found
        leaves = None
        try:
            result = True, function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 (as billiard)
            result = False, ExceptionInfo()
            leaves = error if isinstance(error, (SystemExit, KeyboardInterrupt)) else None
        self.outq.put((READY, (job, index, result, PIPE)))
        if leaves is not None:
            raise leaves

    def reported(self) -> list[tuple[int, bool]]:
        """Return the jobs that were reported as done, and whether they succeeded."""
        found = []
        while not self.messages.empty():
            _, (job, _, (succeeded, _), _) = self.messages.get()
            found.append((job, succeeded))
        return found


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app whose results stay in this process; the default app of all threads."""
    options = {"broker": "memory://", "backend": "cache+memory://", "set_as_current": True}
    with Celery("pipeline", **options) as app:
        monkeypatch.setattr(_state, "default_app", app)
        yield app


@pytest.fixture
def process(app: Celery) -> Iterator[Process]:
    """A process whose worker threads end with the test."""
    interval, before = sys.getswitchinterval(), set(threading.enumerate())
    process = Process(app)
    yield process
    process.write(EOFError())
    for thread in set(threading.enumerate()) - before:
        while thread.is_alive():
            process.worker_threads._reader.hand_over(None)
            thread.join(0.1)
    process.inq._reader.close()
    process.writer.close()
    sys.setswitchinterval(interval)


class Leaving(BatchTask):
    """Has a hook that raises an error in its first item."""

    abstract = True
    error: type[BaseException] = SystemExit
    where = "before_start"
    #: Set when the second item is entered, for the first one to wait for.
    entered: threading.Event | None = None

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Enter an item."""
        if args == [2] and self.entered is not None:
            self.entered.set()
        if args == [1] and self.where == "before_start":
            raise self.error

    def on_success(self, _retval: Any, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Finish an item."""
        if args == [1] and self.where == "on_success":
            if self.entered is not None:
                self.entered.wait(60)
            raise self.error


def send_signal() -> None:
    """Send the signal of a soft time limit, as the pool does."""
    os.kill(os.getpid(), SIG_SOFT_TIMEOUT)


def interrupted(numbers):
    """Return the numbers; a time limit expires meanwhile if they are large."""
    if numbers[0] > 90:
        send_signal()
    return numbers


def same(x):
    """Return the argument."""
    return x


def declared(app: Celery, function: Any = same, **options: Any) -> Any:
    """Return a task with a tracer."""
    app.task(name="pipeline.same", **{"base": BatchTask, "shared": False, **options})(function)
    task = app.tasks["pipeline.same"]
    task.__trace__ = build_tracer(task.name, task, app=app)
    return task


@pytest.mark.parametrize("where", ["before_start", "on_success"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_of_a_hook_is_reported_and_ends_the_process(
    app: Celery, process: Process, error: type[BaseException], where: str
):
    """The pool gets one report, as from billiard, and then the process ends."""
    task = declared(app, base=Leaving, error=error, where=where)
    process.send(task, 1)
    process.run_next()
    with pytest.raises(error):
        process.run_next()

    assert [(1, False)] == process.reported()


def test_batch_that_lies_ready_is_not_lost_with_an_exit(app: Celery, process: Process):
    """A batch that another thread has read by then is finished before the process ends."""
    entered = threading.Event()
    task = declared(app, base=Leaving, error=SystemExit, where="on_success", entered=entered)
    for number in (1, 2):
        process.send(task, number)
    for _ in range(2):
        process.run_next()
    with pytest.raises(SystemExit):
        process.run_next()
    process._ensure_messages_consumed(completed=2)

    assert [(1, False), (2, True)] == sorted(process.reported())


def test_exit_of_a_model_is_reported_once(app: Celery, process: Process):
    """The main thread reports it, and the worker thread does not."""

    def leave(_):
        raise SystemExit(3)

    process.send(declared(app, leave), 1)
    with pytest.raises(SystemExit):
        process.run_next()

    assert [(1, False)] == process.reported()


def test_runner_that_cannot_be_made_is_reported_once(app: Celery, process: Process):
    """A setting that is found to be wrong in the process fails the batch once."""

    class Misset(BatchTask):
        abstract = True

        def runner(self) -> Any:
            raise ValueError("a wrong setting")

    process.send(declared(app, base=Misset), 1)
    process.run_next()
    process._ensure_messages_consumed(completed=1)

    assert 1 == len(process.reported())


def test_success_is_reported_once(app: Celery, process: Process):
    """The worker thread reports it when the results are stored."""
    process.send(declared(app), 1)
    process.run_next()
    process._ensure_messages_consumed(completed=1)

    assert [(1, True)] == process.reported()


@pytest.mark.parametrize("is_lone", [False, True])
def test_urgent_batch_goes_before_the_one_that_lies_ready(
    app: Celery, process: Process, *, is_lone: bool
):
    """The main thread takes the most urgent batch that is ready; also after a lone one."""
    ran: list[int] = []
    entered = {number: threading.Event() for number in (1, 2, 3)}

    def run(numbers: list[int]) -> list[int]:
        ran.extend(numbers)
        if numbers == [1]:
            process.send(task, 2, urgency=9)
            entered[2].wait(60)
            process.send(task, 3)
            entered[3].wait(60)
        return numbers

    class Noting(BatchTask):
        abstract = True

        def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
            entered[args[0]].set()

    task = declared(app, run, base=Noting)
    process.send(task, 1, urgency=9, is_lone=is_lone)
    for _ in range(3):
        process.run_next()
    process._ensure_messages_consumed(completed=3)

    assert [1, 3, 2] == ran
    assert [(1, True), (2, True), (3, True)] == sorted(process.reported())


class Calling(BatchTask):
    """May not overlap, since its call may set up what is there on its own thread only."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task as Celery does."""
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize(("base", "to_read"), [(Calling, None), (BatchTask, 1)])
def test_nothing_is_read_beside_some_lone_batches(
    app: Celery, process: Process, base: type[BatchTask], to_read: int | None
):
    """One that may not overlap has the process to itself, and the last one is followed by none."""
    beside: list[str] = []

    def run(numbers: list[int]) -> list[int]:
        if numbers == [1]:
            process.send(task, 2, is_lone=True)
            time.sleep(0.1)
            beside.append(process.why_threads_read())
        return numbers

    task = declared(app, run, base=base)
    process.worker_threads._to_read = to_read
    process.send(task, 1, is_lone=True)
    for _ in range(2):
        process.run_next()

    assert [""] == beside
    assert [(1, True), (2, True)] == process.reported()


def test_threads_yield_the_interpreter_soon(app: Celery, process: Process):
    """A model that returns to Python does not wait long for a computing worker thread."""
    found: list[float] = []

    def run(numbers: list[int]) -> list[int]:
        found.append(sys.getswitchinterval())
        return numbers

    task = declared(app, run)
    for number in (1, 2, 3):
        process.send(task, number)
    for _ in range(3):
        process.run_next()
    process._ensure_messages_consumed(completed=3)

    assert [pytest.approx(0.0001)] * 3 == found


def test_lone_batch_is_the_main_threads(app: Celery, process: Process):
    """Worker threads finish batches that have others behind them, the main thread a lone one."""
    threads: list[str] = []

    class Noting(BatchTask):
        abstract = True

        def on_success(self, *_: Any) -> None:
            threads.append(threading.current_thread().name)

    task = declared(app, base=Noting)
    for number in (1, 2):
        process.send(task, number)
    for _ in range(2):
        process.run_next()
    process._ensure_messages_consumed(completed=2)
    process.send(task, 3, is_lone=True)
    process.run_next()

    assert [True, True, False] == [name.startswith("batch-worker") for name in threads]
    assert [(1, True), (2, True), (3, True)] == sorted(process.reported())


def test_late_limit_of_a_lone_batch_is_ignored(app: Celery, process: Process):
    """A soft limit that comes after its batch ends neither the next one nor the process."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    task = declared(app, interrupted)
    try:
        process.send(task, 2, is_lone=True, soft_limit=60.0)
        process.run_next()
        send_signal()
        process.send(task, 91, is_lone=True, soft_limit=60.0)
        process.run_next()
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)

    assert [(2, True), (91, True)] == process.reported()
    assert "SUCCESS" == app.AsyncResult("id91").state


def test_limit_of_a_lone_batch_interrupts_it(app: Celery, process: Process):
    """Once its time is up, a lone batch's model is interrupted."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    task = declared(app, interrupted)
    try:
        process.send(task, 92, is_lone=True, soft_limit=1e-6)
        process.run_next()
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)

    assert "SoftTimeLimitExceeded()" == repr(app.AsyncResult("id92").result)


def test_limit_of_an_ordinary_task_interrupts_it(app: Celery, process: Process):
    """For a task that is no batch, the signal is billiard's own again."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    try:
        process.send(declared(app), 1, is_lone=True, soft_limit=60.0)
        process.run_next()
        process.write((TASK, (2, 0, send_signal, (), {})))
        process.run_next()
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)

    assert [(1, True), (2, False)] == process.reported()


def test_jobs_behind_an_ordinary_task_run_after_it(app: Celery, process: Process):
    """Batches before it end first, and what comes behind it is read when it has run."""
    ran: list[Any] = []

    def run(numbers: list[int]) -> list[int]:
        ran.extend(numbers)
        return numbers

    def ordinary() -> None:
        ran.append(sorted(number for number, _ in process.reported()))

    task = declared(app, run)
    process.send(task, 1)
    process.send(task, 2)
    process.write((TASK, (3, 0, ordinary, (), {})))
    process.send(task, 4, urgency=-1)
    process.send(task, 5)
    for _ in range(5):
        process.run_next()
    process._ensure_messages_consumed(completed=5)

    assert [1, 2, [1, 2], 4, 5] == ran
    assert [(3, True), (4, True), (5, True)] == sorted(process.reported())
