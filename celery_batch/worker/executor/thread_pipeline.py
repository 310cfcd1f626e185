"""
Batches of a threads pool that has one thread.

The pool's thread calls models.  Worker threads prepare the next batch and finish the last one
beside it, as in a pool process; see `pipeline`.

Rule 1: jobs run in the order in which the pool got them.
Rule 2: nothing of ours runs beside an ordinary task or a suspect, a request whose process died.
Rule 3: a batch is accepted when its model is about to run, and it is done when its results are
        stored.  Of a batch that was prepared ahead, the starts of its requests are announced
        while the model runs, unless they are acknowledged early.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult, TaskPool
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_batch.batching.batch import Reason
from celery_batch.compat.celery import close_django_connections
from celery_batch.worker.dispatch.follow_up import error_info
from celery_batch.worker.dispatch.job_submitter import may_overlap, overlap_state
from celery_batch.worker.executor.executor import run_batch, trace_batch
from celery_batch.worker.executor.model_call import ModelCall
from celery_batch.worker.executor.pipeline import SWITCH_INTERVAL, ModelThread, OverlappedBatch

__all__ = ["overlap_in"]

logger = logging.getLogger(__name__)

#: One for the batch whose results are stored, one for the batch that runs, one that is ready.
_THREADS = 3


class _Cancelled(BaseException):
    """The model of a batch that was prepared is not called: the pool stops."""


class _Batch(OverlappedBatch):
    """A batch, and the pool's callbacks for it."""

    def __init__(
        self,
        arguments: tuple[Any, ...],
        on_accepted: Callable[..., Any],
        on_end: Callable[..., Any],
    ) -> None:
        super().__init__((None, None), arguments)
        self.on_accepted, self.on_end = on_accepted, on_end
        #: Whether a worker thread has it, or will.
        self.is_traced = False
        #: Announces the start of the requests, where that is left to the worker thread.
        self.announce: Callable[[], object] | None = None

    # These methods run on the worker thread.

    def run_model(self, call: ModelCall) -> float:
        """Have the pool's thread call the model, and announce the start meanwhile."""
        self._offer(call)
        self.await_start()
        self.announce_start()
        return self._await_end()

    def announce_start(self) -> None:
        """Announce the start of the requests, if that was left to this thread."""
        announce, self.announce = self.announce, None
        if announce is None:
            return
        try:
            announce()
        except BaseException:  # even an exit: the model runs, and ends the batch
            logger.exception("Could not report the start of a batch of %s", self.task_name)


@dataclass(eq=False, slots=True)
class _Job:
    """A job of the pool's thread."""

    run: Callable[[], object]
    batch: _Batch | None = None
    is_exclusive: bool = False


class ThreadPipeline:
    """Runs the jobs of a threads pool that has one thread."""

    def __init__(self, app: Any, pool: TaskPool) -> None:
        self._app = app
        self._pool = pool
        self._stop_pool = pool.on_stop
        self._workers = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch-worker")
        #: Guards the jobs, and which batches are traced.
        self._lock = threading.Lock()
        #: The job that runs, and those that wait.
        self._jobs: list[_Job] = []
        self._models = ModelThread()

    def start(self) -> None:
        """Take the pool's jobs from now on."""
        if threading.current_thread() is threading.main_thread():  # else the process is a user's
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._pool.on_apply, self._pool.on_stop = self.apply, self.stop
        self._pool.on_terminate = self.terminate

    def apply(
        self,
        target: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> ApplyResult:
        """Submit a job, as the pool's own method does."""
        run = partial(apply_target, target, args, kwargs, callback, accept_callback)
        is_usual = target is run_batch and args[1].reason != Reason.ALONE
        if not (is_usual and may_overlap(self._app.tasks.get(args[0]))):
            job = _Job(partial(self._run_alone, run), is_exclusive=True)
        elif args[1].is_lone:  # to hand it over would cost more than it gives
            job = _Job(partial(self._run_lone, run))
        else:
            batch = _Batch(args, accept_callback, callback)
            job = _Job(partial(self._call_model, batch), batch)
        return ApplyResult(self._submit(job))

    def stop(self) -> None:
        """Stop the pool, and return when the batches whose model was called are finished."""
        self._stop_pool()
        self._workers.shutdown()

    def terminate(self) -> None:
        """Drop what waits, and have the threads end when they have finished what runs."""
        self._pool.executor.shutdown(wait=False, cancel_futures=True)
        self._workers.shutdown(wait=False)

    def _submit(self, job: _Job) -> Future[object]:
        executor: ThreadPoolExecutor = self._pool.executor
        with self._lock:
            may_trace = not any(each.is_exclusive for each in self._jobs)
            self._jobs.append(job)
        try:
            future = executor.submit(job.run)
        except RuntimeError:  # the pool is closing
            self._jobs.remove(job)
            raise
        future.add_done_callback(partial(self._ended, job))
        if job.batch is not None and may_trace:
            self._trace_ahead(job.batch)
        return future

    def _ended(self, job: _Job, future: Future[object]) -> None:
        """Forget a job that has run, or was cancelled."""
        if job.batch is not None and (future.cancelled() or future.exception() is not None):
            job.batch.cancel(_Cancelled())
        with self._lock:
            self._jobs.remove(job)
            is_last = not self._jobs
        if is_last:  # else the next job releases the batch before it
            self._models.release_last()

    def _trace_ahead(self, batch: _Batch) -> None:
        """Have a worker thread prepare a batch before the pool's thread takes it."""
        with self._lock:
            if batch.is_traced:
                return
            batch.is_traced = True
        self._workers.submit(self._trace, batch)

    # These methods run on the pool's thread.

    def _run_alone(self, run: Callable[[], object]) -> None:
        self._models.await_finish(None)
        run()

    def _run_lone(self, run: Callable[[], object]) -> None:
        self._models.release_last()
        run()

    def _call_model(self, batch: _Batch) -> None:
        with self._lock:
            is_traced, batch.is_traced = batch.is_traced, True
        try:
            close_django_connections(self._app)  # signals do so on the worker threads
            began = time.monotonic()
            batch.announce = batch.on_accepted(os.getpid(), began, is_read_ahead=is_traced)
            if not is_traced:  # now, for nothing that was revoked meanwhile to be traced
                self._workers.submit(self._trace, batch)
            self._models.run(batch)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except BaseException as error:  # noqa: BLE001 (as Celery's pools report an exit)
            batch.cancel(_Cancelled())
            batch.on_end(_lost(error))

    # This method runs on the worker threads.

    def _trace(self, batch: _Batch) -> None:
        if batch.has_raised:  # it was cancelled while it waited for a worker thread
            return
        try:
            end = trace_batch(batch.task_name, batch.payload, batch.run_model)
        except BaseException as error:  # noqa: BLE001 (the model has ended the batch, or a hook)
            end = _lost(error)
        try:
            batch.await_start()
            batch.announce_start()  # if the model was not called
            if not batch.has_raised:
                batch.on_end(end)
        except Exception:
            logger.exception("Could not report the end of a batch of %s", batch.task_name)
        finally:
            batch.finish()


def overlap_in(pool: Any, app: Any) -> None:
    """Have the batches of a pool overlap, if it is a threads pool of one thread."""
    if isinstance(pool, TaskPool) and overlap_state(app, pool.limit, pool="threads").is_on:
        ThreadPipeline(app, pool).start()


def _lost(error: BaseException) -> ExceptionInfo:
    return error_info(WorkerLostError(repr(error)))
