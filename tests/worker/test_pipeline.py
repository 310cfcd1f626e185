"""What a pool process says of a batch: once, whatever its hooks and its model do."""

from __future__ import annotations

import os
import signal
import sys
import threading
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
from celery_batch.processes.managed_process import wait_until
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.executor import run_batch, run_lone_batch
from celery_batch.worker.executor.pipeline import _WorkerThreads

INBOX = 7


class Process:
    """What a pool process of billiard's has that matters here, and its loop."""

    def __init__(self, app: Celery) -> None:
        self.maxtasks, self.inqW_fd = None, INBOX
        self.jobs: SimpleQueue[Any] = SimpleQueue()
        reader, self.writer = Pipe(duplex=False)
        self.inq = SimpleNamespace(_reader=reader)
        self.words: SimpleQueue[Any] = SimpleQueue()
        self.outq = SimpleNamespace(put=self.words.put, send_payload=self.words.put)
        self.worker_threads = _WorkerThreads(app, self)
        self.worker_threads.take_over()

    def why_clerks_read(self) -> str:
        """Return "" if they have left it to the main thread, which is still to hear of it."""
        return "" if self.worker_threads._read.qsize() else "nothing said"

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
        run: Any = run_batch,
        *,
        soft_limit: float | None = None,
        urgency: int = 0,
    ) -> None:
        """Write a batch of one into the process."""
        name = f"id{number}"
        headers = {"id": name, "task": task.name, "delivery_info": {}}
        delivery = Delivery(name, headers, [[number], {}, {}], None, None)
        self.write(
            (
                TASK,
                (
                    number,
                    0,
                    run,
                    (task.name, BatchPayload([delivery], urgency=urgency), soft_limit),
                    {},
                ),
            )
        )

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
        self.outq.put((READY, (job, index, result, INBOX)))
        if leaves is not None:
            raise leaves

    def said(self) -> list[tuple[int, bool]]:
        """Return the jobs that have ended, and whether well, as the pool was told."""
        found = []
        while not self.words.empty():
            _, (job, _, (went_well, _), _) = self.words.get()
            found.append((job, went_well))
        return found


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app whose results stay in this process; that of all of its threads."""
    options = {"broker": "memory://", "backend": "cache+memory://", "set_as_current": True}
    with Celery("clerks", **options) as app:
        monkeypatch.setattr(_state, "default_app", app)
        yield app


@pytest.fixture
def process(app: Celery) -> Iterator[Process]:
    """A process whose clerks leave with the test."""
    interval, before = sys.getswitchinterval(), set(threading.enumerate())
    process = Process(app)
    yield process
    process.write(EOFError())
    for thread in set(threading.enumerate()) - before:
        while thread.is_alive():
            process.worker_threads._turns.hand_over(None)  # whoever reads, it is for them
            thread.join(0.1)
    process.inq._reader.close()
    process.writer.close()
    sys.setswitchinterval(interval)


class Leaving(BatchTask):
    """Has a hook that raises what the test says, in its first item."""

    abstract = True
    error: type[BaseException] = SystemExit
    where = "before_start"
    #: Set when the second item is entered, for the first one to wait for.
    entered: threading.Event | None = None

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Be entered."""
        if args == [2] and self.entered is not None:
            self.entered.set()
        if args == [1] and self.where == "before_start":
            raise self.error

    def on_success(self, _retval: Any, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Be settled."""
        if args == [1] and self.where == "on_success":
            if self.entered is not None:
                self.entered.wait(60)
            raise self.error


def strike() -> None:
    """Let a soft limit pass, as the pool does."""
    os.kill(os.getpid(), SIG_SOFT_TIMEOUT)


def struck(numbers):
    """Return what came; a limit passes meanwhile if that is large."""
    if numbers[0] > 90:
        strike()
    return numbers


def same(x):
    """Return what came."""
    return x


def declared(app: Celery, function: Any = same, **options: Any) -> Any:
    """Return a task, ready to be traced."""
    app.task(name="clerks.same", **{"base": BatchTask, "shared": False, **options})(function)
    task = app.tasks["clerks.same"]
    task.__trace__ = build_tracer(task.name, task, app=app)
    return task


@pytest.mark.parametrize("where", ["before_start", "on_success"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_of_a_hook_is_told_and_carried_out(
    app: Celery, process: Process, error: type[BaseException], where: str
):
    """The pool hears of it once, as it would from billiard, and the process then ends."""
    task = declared(app, base=Leaving, error=error, where=where)
    process.send(task, 1)
    process.run_next()
    with pytest.raises(error):
        process.run_next()

    assert [(1, False)] == process.said()


def test_batch_that_lies_ready_is_not_lost_with_an_exit(app: Celery, process: Process):
    """What the other clerk has read by then is answered before the process ends."""
    entered = threading.Event()
    task = declared(app, base=Leaving, error=SystemExit, where="on_success", entered=entered)
    for number in (1, 2):
        process.send(task, number)
    for _ in range(2):
        process.run_next()
    with pytest.raises(SystemExit):
        process.run_next()
    process._ensure_messages_consumed(completed=2)

    assert [(1, False), (2, True)] == sorted(process.said())


def test_exit_of_a_model_is_told_once(app: Celery, process: Process):
    """There the main thread tells it, and the clerk does not."""

    def leave(_):
        raise SystemExit(3)

    process.send(declared(app, leave), 1)
    with pytest.raises(SystemExit):
        process.run_next()

    assert [(1, False)] == process.said()


def test_runner_that_cannot_be_made_is_told_once(app: Celery, process: Process):
    """A setting that turns out to be wrong in the process fails the batch, in one word."""

    class Misset(BatchTask):
        abstract = True

        def runner(self) -> Any:
            raise ValueError("a wrong setting")

    process.send(declared(app, base=Misset), 1)
    process.run_next()
    process._ensure_messages_consumed(completed=1)

    assert 1 == len(process.said())


def test_batch_that_goes_well_is_told_once(app: Celery, process: Process):
    """Its clerk says so when the results are stored."""
    process.send(declared(app), 1)
    process.run_next()
    process._ensure_messages_consumed(completed=1)

    assert [(1, True)] == process.said()


def test_urgent_batch_goes_before_the_one_that_lies_ready(app: Celery, process: Process):
    """The main thread takes the most urgent of what clerks have made ready."""
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
    process.send(task, 1, urgency=9)
    for _ in range(3):
        process.run_next()
    process._ensure_messages_consumed(completed=3)

    assert [1, 3, 2] == ran
    assert [(1, True), (2, True), (3, True)] == sorted(process.said())


def test_models_share_the_interpreter_with_clerks(app: Celery, process: Process):
    """However a batch follows another, others have their turns by the time its model runs."""
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
    """What has company is settled by clerks; what comes alone later, by the main thread."""
    settlers: list[str] = []

    class Noting(BatchTask):
        abstract = True

        def on_success(self, *_: Any) -> None:
            settlers.append(threading.current_thread().name)

    task = declared(app, base=Noting)
    for number in (1, 2):
        process.send(task, number)
    for _ in range(2):
        process.run_next()
    process._ensure_messages_consumed(completed=2)
    wait_until(process.why_clerks_read, [], what="the end of reading", timeout=60)
    process.send(task, 3, run_lone_batch)
    process.run_next()

    assert [True, True, False] == [name.startswith("clerk") for name in settlers]
    assert [(1, True), (2, True), (3, True)] == sorted(process.said())


def test_late_limit_of_a_lone_batch_is_nobodys(app: Celery, process: Process):
    """A soft limit that comes when its batch is told ends neither the next one nor the process."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    task = declared(app, struck)
    try:
        process.send(task, 2, run_lone_batch, soft_limit=60.0)
        process.run_next()
        strike()
        process.send(task, 91, run_lone_batch, soft_limit=60.0)
        process.run_next()
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)

    assert [(2, True), (91, True)] == process.said()
    assert "SUCCESS" == app.AsyncResult("id91").state


def test_limit_of_a_lone_batch_strikes(app: Celery, process: Process):
    """Once its time is up, a lone batch's model is broken off."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    task = declared(app, struck)
    try:
        process.send(task, 92, run_lone_batch, soft_limit=1e-6)
        process.run_next()
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)

    assert "SoftTimeLimitExceeded()" == repr(app.AsyncResult("id92").result)
