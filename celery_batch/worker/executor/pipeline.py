"""
Threads of a pool process that prepare and finish batches beside the model.

A worker thread reads a batch, enters its tracers, has the main thread run the model, and
finishes the tracers; only then it reads the next batch.  There are four: while one finishes a
batch and another one's batch runs, the third prepares the next, and the fourth a more urgent one.

Rule 1: a lone batch is the main thread's from beginning to end, as in any pool: handing it
        over and back would cost more than there is to do beside it.  The main thread
        therefore reads the pipe until a batch comes that has others behind it, or any job
        beside a lone batch, whose end more urgent ones must not wait for unread.  From then
        on worker threads read, until they have read an ordinary task, or a lone batch while
        no other batch is unfinished.
Rule 2: jobs run in the order in which they were read, except that a batch overtakes less
        urgent ones whose models have not begun.
Rule 3: the pool gets the messages that it always gets: a batch is accepted when its model
        is about to run, and it is done when its results are stored.
Rule 4: nothing of ours runs beside an ordinary task.
Rule 5: each batch that the pool knows to be running gets its end before the process exits.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from pickle import dumps
from queue import SimpleQueue
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.pool import (
    ACK,
    READY,
    SIG_SOFT_TIMEOUT,
    TASK,
    MaybeEncodingError,
    soft_timeout_sighandler,
)
from celery.utils.functional import noop

from celery_batch.compat.billiard import (
    current_worker,
    job_pipe,
    replace_loop,
    terminate_handler_fired,
)
from celery_batch.compat.celery import close_django_connections, current_task
from celery_batch.worker.dispatch.follow_up import error_info
from celery_batch.worker.dispatch.job_submitter import may_overlap
from celery_batch.worker.executor.executor import run_batch, trace_batch
from celery_batch.worker.executor.job_reader import JobReader
from celery_batch.worker.executor.model_call import ModelCall
from celery_batch.worker.executor.time_limit import SoftLimit

__all__ = ["SWITCH_INTERVAL", "JobQueue", "ModelThread", "OverlappedBatch", "start_threads"]

logger = logging.getLogger(__name__)

#: One for the batch whose results are stored, one for the batch that runs, one for the batch
#: that is ready, and one for an urgent batch.
_THREADS = 4

#: Bytes.  Tracers are nested, and a thread's stack does not grow by itself as the main
#: thread's does; the unused part costs address space only.
_STACK = 64 << 20

#: Seconds after which a computing thread yields the interpreter.  With Python's 5 ms a
#: model would wait for that long whenever it returns to Python.
SWITCH_INTERVAL = 0.0001

#: Seconds that the tracers of a batch get to finish when its model ends the process; and then
#: the other batches, if the process is told to terminate.
_FINISH_TIMEOUT, _LAST_MOMENT = 5.0, 1.0


class JobQueue:
    """A queue for one thread, in which batches overtake batches that they precede."""

    def __init__(self) -> None:
        self._new: SimpleQueue[Any] = SimpleQueue()  # safe in signal handlers
        self._waiting: deque[Any] = deque()

    def put(self, job: Any) -> None:
        """Put a job behind everything that it does not precede."""
        self._new.put(job)

    def get(self, before_wait: Callable[[], object] = noop) -> Any:
        """Return the next job; if there is none, wait for one after a call of `before_wait`."""
        while not self._new.empty():
            self._waiting.append(self._new.get())
        if not self._waiting:
            before_wait()
            self._waiting.append(self._new.get())
        batches = takewhile(lambda job: hasattr(job, "precedence"), self._waiting)
        job = min(batches, key=attrgetter("precedence"), default=self._waiting[0])
        self._waiting.remove(job)
        return job


@dataclass(frozen=True, slots=True)
class _Ready:
    """A model call that is ready, with the context of the thread that prepared it."""

    call: ModelCall
    context: Context
    request: Any
    since: float


class OverlappedBatch:
    """A batch that has reached this process."""

    def __init__(self, job: tuple[Any, Any], arguments: tuple[Any, ...]) -> None:
        self.job = job
        self.task_name, self.payload, self.soft_limit = arguments
        #: Smaller goes first.
        self.precedence: tuple[int, float] = self.payload.precedence
        #: Set when the batch is accepted.
        self.limit = SoftLimit()
        #: Whether the model ended the process: then the main thread reports the batch's end.
        self.has_raised = False
        self._accepted = threading.Event()
        self._finished = threading.Event()
        self._ready: SimpleQueue[_Ready | None] = SimpleQueue()
        #: The seconds for which the model call has waited, or the error that ended it.
        self._ends: SimpleQueue[float | BaseException] = SimpleQueue()
        self._unreleased: float | None = None

    # These methods run on the thread that calls models.

    def run(self, release_last: Callable[[], None]) -> None:
        """Run the model as soon as the batch is ready for it; release the batch before in time."""
        self._accepted.set()
        try:
            if self._ready.empty():
                release_last()
            ready = self._ready.get()
            release_last()  # not before: its thread would compete for the interpreter
            if ready is not None:
                waited = time.monotonic() - ready.since
                with current_task(ready.call.task, ready.request):
                    ready.context.run(ready.call, self.limit)
                self._unreleased = waited
        except BaseException as error:
            self.has_raised = True
            self._ends.put(error)
            self._finished.wait(_FINISH_TIMEOUT)
            raise

    def cancel(self, error: BaseException) -> None:
        """End the batch by an error, without a call of its model and without a report."""
        self.has_raised = True
        self._accepted.set()
        self._ends.put(error)

    def release(self) -> None:
        """Have the worker thread go on after the model call, if it has not done so."""
        waited, self._unreleased = self._unreleased, None
        if waited is not None:
            self._ends.put(waited)

    @property
    def is_finished(self) -> bool:
        """Whether the worker thread is done with the batch."""
        return self._finished.is_set()

    def await_finish(self, timeout: float | None) -> bool:
        """Wait until the batch is finished, if it was accepted; return whether that is so."""
        return not self._accepted.is_set() or self._finished.wait(timeout)

    # These methods run on the worker thread.

    def run_model(self, call: ModelCall) -> float:
        """Prepare a call here, and return when the main thread has made it; see `RunModel`."""
        self._offer(call)
        return self._await_end()

    def _offer(self, call: ModelCall) -> None:
        """Prepare a model call, and leave it to the main thread."""
        call.prepare()
        request = call.task.request_stack.top
        self._ready.put(_Ready(call, copy_context(), request, time.monotonic()))

    def _await_end(self) -> float:
        end = self._ends.get()
        if isinstance(end, BaseException):
            raise end
        return end

    def await_start(self) -> None:
        """Return when the main thread has accepted the batch."""
        self._accepted.wait()

    def finish(self) -> None:
        """Mark the batch as finished; there is no more model call."""
        self._ready.put(None)
        self._finished.set()


class ModelThread:
    """The one thread that calls models, with the batches whose models it has called."""

    def __init__(self) -> None:
        #: Those that are not finished, oldest first.
        self._unfinished: deque[OverlappedBatch] = deque()
        #: The last one, until its worker thread is told that the model is done.  On a threads pool
        #: another thread may do so, too: a pop is atomic.
        self._last: deque[OverlappedBatch] = deque()

    def run(self, batch: OverlappedBatch) -> OverlappedBatch:
        """Run the model of a batch."""
        while self._unfinished and self._unfinished[0].is_finished:
            self._unfinished.popleft()
        self._unfinished.append(batch)
        try:
            batch.run(self.release_last)
        finally:
            self.release_last()
            self._last.append(batch)
        return batch

    def release_last(self) -> None:
        """Have the worker thread of the last batch go on."""
        with suppress(IndexError):
            self._last.pop().release()

    def await_finish(self, timeout: float | None) -> None:
        """Return when all batches are finished, or when one has not finished in time."""
        self.release_last()
        while self._unfinished and self._unfinished[0].await_finish(timeout):
            self._unfinished.popleft()


def start_threads(app: Any) -> None:
    """Start the worker threads of this pool process, if its batches may overlap."""
    worker = current_worker()
    if worker is not None:
        _WorkerThreads(app, worker).start()


class _WorkerThreads:
    """The worker threads of this process."""

    def __init__(self, app: Any, worker: Any) -> None:
        self._app = app
        self._worker = worker
        #: What worker threads have read: batches, and a job with which the main thread reads again;
        #: or the error that ends the process.
        self._jobs = JobQueue()
        # The main thread's own.
        self._models = ModelThread()
        #: Whether its next job comes from there, and not from the pipe.
        self._threads_read = False
        # Those of the thread that reads: the main thread or, under this lock, a worker thread.
        # Any thread ends the reading by a 0.
        self._reading = threading.Lock()
        self._reader = JobReader(job_pipe(worker), worker.wait_for_job)
        self._to_read: int | None = worker.maxtasks
        #: The batches that worker threads have read and not finished.
        self._open: set[OverlappedBatch] = set()
        self._writing = threading.Lock()
        #: Batches of which the pool could not be told.
        self._unreported = 0
        #: What billiard's loop called before.
        self._put, self._ensure_consumed = replace_loop(
            worker, self.wait_for_job, self.put, self.ensure_messages_consumed
        )

    def start(self) -> None:
        """Start the threads."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        before = threading.stack_size(_STACK)
        try:
            for n in range(1, _THREADS + 1):
                threading.Thread(target=self._work, name=f"batch-worker-{n}", daemon=True).start()
        finally:
            threading.stack_size(before)

    # These methods run on the main thread.

    def wait_for_job(self) -> Any:
        """Return the next job in billiard's form; for a batch, its model call."""
        close_django_connections(self._app)  # signals do so on worker threads only
        if not self._threads_read:
            return self._receive()
        job = self._jobs.get(self._models.release_last)
        if isinstance(job, BaseException):
            raise job
        if isinstance(job, OverlappedBatch):
            job.limit = self._limit(job.soft_limit)
            return TASK, (*job.job, self._models.run, (job,), {})
        self._threads_read = False
        self._models.await_finish(None)
        return self._alone(job)

    def put(self, message: Any) -> None:
        """Send a message to the pool, except that a batch is done: its thread sends that."""
        if message[0] == READY and isinstance(message[1][2][1], OverlappedBatch):
            return
        with self._writing:
            if message[0] == ACK:  # between two models; plain numbers need no pickler of billiard's
                self._worker.outq.send_payload(dumps(message))
            else:
                self._put(message)

    def ensure_messages_consumed(self, completed: int) -> Any:
        """Return when the pool has read all messages, before this process ends."""
        self._models.await_finish(_LAST_MOMENT if terminate_handler_fired() else None)
        # Billiard would wait 30 s for the pool to read what was not sent.
        return self._ensure_consumed(completed=completed - self._unreported)

    def _receive(self) -> Any:
        """Read a job on this thread; None if worker threads are to have it."""
        job = self._reader.receive()
        if not job:
            return job
        if not _is_lone(job) and self._may_overlap(job):
            self._threads_read = True
            self._reader.hand_over(job)
            return None
        if self._to_read:
            self._to_read -= 1
        return self._alone(job)

    def _alone(self, job: Any) -> Any:
        """Return a job that the main thread runs whole: an ordinary task or a lone batch."""
        number, index, _, arguments, options = job[1]
        if not self._may_overlap(job):
            signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
            return job
        limit = self._limit(arguments[2])
        return TASK, (number, index, self._run_lone, (*arguments, limit), options)

    def _run_lone(self, *arguments: Any) -> Any:
        """Run a lone batch as `run_batch` does; worker threads read what comes meanwhile."""
        if self._to_read == 0:
            return run_batch(*arguments)
        self._reader.watch()
        try:
            return run_batch(*arguments)
        finally:
            self._threads_read = self._reader.unwatch()

    def _may_overlap(self, job: Any) -> bool:
        """Return whether a job is a batch that may run beside others."""
        _, _, function, arguments, _ = job[1]
        return function is run_batch and may_overlap(self._app.tasks.get(arguments[0]))

    @staticmethod
    def _limit(seconds: float | None) -> SoftLimit:
        """Handle the pool's signals for the batch that runs next, and return its limit."""
        limit = SoftLimit(seconds)
        limit.handle_signals()
        return limit

    # These methods run on the worker threads.

    def _work(self) -> None:
        while (batch := self._read_batch()) is not None:
            self._trace(batch)

    def _read_batch(self) -> OverlappedBatch | None:
        """Read the next batch, one thread at a time; None if there is nothing more to read."""
        with self._reading:
            while self._to_read != 0:
                try:
                    job = self._reader.receive_in_thread()
                except BaseException as error:  # noqa: BLE001 (the main thread ends the process)
                    self._to_read = 0
                    self._jobs.put(error)
                    break
                if self._to_read:  # another thread may have ended the reading meanwhile
                    self._to_read -= 1
                if self._may_overlap(job) and (self._open or not _is_lone(job)):
                    number, index, _, arguments, _ = job[1]
                    batch = OverlappedBatch((number, index), arguments)
                    self._open.add(batch)
                    self._jobs.put(batch)
                    return batch
                self._reader.give_back()
                self._jobs.put(job)
        return None

    def _trace(self, batch: OverlappedBatch) -> None:
        try:
            end = trace_batch(batch.task_name, batch.payload, batch.run_model)
            batch.await_start()
            if not batch.has_raised:
                self._report(batch, end)
        except BaseException as error:
            logger.debug("A batch of %s has ended its process", batch.task_name, exc_info=True)
            if not batch.has_raised:
                self._end_process(batch, error)
        finally:
            self._open.discard(batch)
            batch.finish()

    def _end_process(self, batch: OverlappedBatch, error: BaseException) -> None:
        """Report that a hook ends this process, as billiard would, and have it end."""
        batch.await_start()
        try:
            self._report(batch, ExceptionInfo(), succeeded=False)
        except Exception:  # noqa: BLE001 (the pool may be gone, or the pipe to it closed)
            self._unreported += 1
        self._to_read = 0
        self._jobs.put(error)

    def _report(self, batch: OverlappedBatch, end: Any, *, succeeded: bool = True) -> None:
        tail = (self._worker.inqW_fd,)
        try:
            self.put((READY, (*batch.job, (succeeded, end), *tail)))
        except Exception as error:  # noqa: BLE001 (as billiard: a pickling error is the job's)
            einfo = error_info(MaybeEncodingError(error, end))
            self.put((READY, (*batch.job, (False, einfo), *tail)))


def _is_lone(job: Any) -> bool:
    """Return whether a job is a batch beside which there is nothing to do."""
    _, _, function, arguments, _ = job[1]
    return function is run_batch and arguments[1].is_lone
