"""
Batches of a threads pool that has one thread.

The pool's thread calls models.  Helper threads prepare the next batch and finish the last one
beside it, as in a pool process; see `pipeline`.

Rule 1: jobs run in the order in which the pool got them.
Rule 2: nothing of ours runs beside an ordinary task or beside a request that may have ended a
        worker.
Rule 3: a batch is accepted when its model is about to run, and it is done when its results are
        stored.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
from celery_batch.worker.dispatch.payload import BatchPayload
from celery_batch.worker.executor.executor import run_batch, trace_batch
from celery_batch.worker.executor.pipeline import SWITCH_INTERVAL, OverlappedBatch

__all__ = ["ThreadPipeline", "overlap_in"]

logger = logging.getLogger(__name__)

#: One for the batch that is finished, one for the batch that runs or is ready.
_THREADS = 2


class _Cancelled(BaseException):
    """The pool stops: the model of a batch that was prepared is not called."""


class _Batch(OverlappedBatch):
    """
    A batch, and the pool's callbacks for it.

    Args:
        arguments: Those of `run_batch`.
        on_accepted: Called when the model is about to run, with the process and the time.
        on_end: Called with the batch's end.
    """

    def __init__(
        self,
        arguments: tuple[Any, ...],
        on_accepted: Callable[..., Any],
        on_end: Callable[..., Any],
    ) -> None:
        super().__init__((None, None), arguments)
        self.on_accepted, self.on_end = on_accepted, on_end
        #: Whether a helper thread has it, or will.
        self.is_traced = False


class ThreadPipeline:
    """
    Runs the jobs of a threads pool that has one thread.

    Args:
        app: The Celery app.
        pool: Celery's pool.
    """

    def __init__(self, app: Any, pool: TaskPool) -> None:
        self._app = app
        self._pool = pool
        self._stop_pool = pool.on_stop
        self._helpers = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch-worker")
        #: Guards the counts, and which batches are traced.
        self._lock = threading.Lock()
        #: How many jobs wait for the pool's thread; how many that run alone wait or run.
        self._waiting = self._exclusive = 0
        #: The batch whose model ran last; its helper may not know yet that the model is done.
        self._last: _Batch | None = None
        #: Batches whose model was called, oldest first.
        self._unfinished: deque[_Batch] = deque()

    def start(self) -> None:
        """Take the pool's jobs from now on."""
        if threading.current_thread() is threading.main_thread():  # else the process is a user's
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._pool.on_apply, self._pool.on_stop = self.apply, self.stop

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
        overlaps = target is run_batch and self._overlaps(*args)
        if overlaps and not args[1].is_lone:
            batch = _Batch(args, accept_callback, callback)
            batch.payload.is_read_ahead = True
            future = self._submit(partial(self._call_model, batch))
            future.add_done_callback(partial(self._cancel_if, batch))
            self._trace_soon(batch)
        else:
            run = partial(apply_target, target, args, kwargs, callback, accept_callback)
            # A lone batch is prepared and finished here: a helper would cost more than it gives.
            future = self._submit(run) if overlaps else self._submit_alone(run)
        return ApplyResult(future)

    def stop(self) -> None:
        """Stop the pool, and return when the batches whose model was called are finished."""
        self._stop_pool()
        self._release_last()  # which the next job would have done, that is cancelled now
        self._helpers.shutdown()

    def _overlaps(self, task_name: str, payload: BatchPayload, *_: Any) -> bool:
        return payload.reason != Reason.ALONE and may_overlap(self._app.tasks.get(task_name))

    def _submit(self, run: Callable[[], Any]) -> Future[None]:
        with self._lock:
            self._waiting += 1
        executor: ThreadPoolExecutor = self._pool.executor
        return executor.submit(self._run, run)

    def _submit_alone(self, run: Callable[[], Any]) -> Future[None]:
        with self._lock:
            self._exclusive += 1
        return self._submit(partial(self._run_alone, run))

    def _trace_soon(self, batch: _Batch, *, is_next: bool = False) -> None:
        """Have a helper prepare a batch, unless a job waits or runs beside which nothing may."""
        with self._lock:
            if batch.is_traced or (self._exclusive and not is_next):
                return
            batch.is_traced = True
        self._helpers.submit(self._trace, batch)

    @staticmethod
    def _cancel_if(batch: _Batch, future: Future[Any]) -> None:
        if future.cancelled():
            batch.cancel(_Cancelled())

    # These methods run on the pool's thread.

    def _run(self, run: Callable[[], Any]) -> None:
        with self._lock:
            self._waiting -= 1
        close_django_connections(self._app)  # signals do so on the helpers
        try:
            run()
        finally:
            if not self._waiting:  # else the next job releases it
                self._release_last()

    def _run_alone(self, run: Callable[[], Any]) -> None:
        self._release_last()
        while self._unfinished:
            self._unfinished.popleft().await_finish(None)
        try:
            run()
        finally:
            with self._lock:
                self._exclusive -= 1

    def _call_model(self, batch: _Batch) -> None:
        self._trace_soon(batch, is_next=True)
        last, self._last = self._last, batch
        while self._unfinished and self._unfinished[0].is_finished:
            self._unfinished.popleft()
        self._unfinished.append(batch)
        batch.on_accepted(os.getpid(), time.monotonic())
        try:
            batch.run(last)
        except (WorkerShutdown, WorkerTerminate):
            raise
        except BaseException as error:  # noqa: BLE001 (as Celery's pools report an exit)
            batch.on_end(_lost(error))

    def _release_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.release()

    # This method runs on the helpers.

    def _trace(self, batch: _Batch) -> None:
        try:
            end = trace_batch(batch.task_name, batch.payload, batch.run_model)
        except BaseException as error:  # noqa: BLE001 (the model has ended the batch, or a hook)
            end = _lost(error)
        try:
            batch.await_start()
            if not batch.has_raised:
                batch.on_end(end)
        except Exception:
            logger.exception("Could not report the end of a batch of %s", batch.task_name)
        finally:
            batch.finish()


def overlap_in(pool: Any, app: Any) -> None:
    """
    Have the batches of a pool overlap, if it is a threads pool of one thread.

    Args:
        pool: Celery's pool, before its first job.
        app: The Celery app.
    """
    if isinstance(pool, TaskPool) and overlap_state(app, pool.limit, pool="threads").is_on:
        ThreadPipeline(app, pool).start()


def _lost(error: BaseException) -> ExceptionInfo:
    return error_info(WorkerLostError(repr(error)))
