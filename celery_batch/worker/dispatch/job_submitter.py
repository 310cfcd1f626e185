"""Sends the next batch to the pool process before the running one ends.

Celery writes a job to a process when that is idle; the device would wait for it.
With one process there is no other that the batch could run in sooner, so the
next one is written behind the one that runs.

Rule 1: at most one batch is written behind the running one, and one more that precedes it;
        nothing but batches is.  The process takes the one that precedes the other first.
Rule 2: first come, first served: a batch is held for the place behind the running one only
        while no other task waits for the process.
Rule 3: a suspect has the process to itself.
Rule 4: a batch that was acknowledged before it ran is never written ahead: if the
        connection were lost, it would run here and elsewhere.
"""

from __future__ import annotations

from bisect import insort
from functools import cached_property
from operator import attrgetter
from typing import Any

from celery import Task
from celery.exceptions import TaskRevokedError

from celery_batch.compat.billiard import PoolPipe
from celery_batch.compat.celery import is_contested
from celery_batch.compat.fast_paths import FastPaths, PathState
from celery_batch.compat.tasks import uses_backend_of_app
from celery_batch.task import BatchTask
from celery_batch.worker.dispatch.batch_job import BatchJob

__all__ = ["JobSubmitter", "may_overlap", "overlap_state"]


def overlap_state(
    app: Any, processes: int, path: str = "overlap", *, pool: str = "prefork"
) -> PathState:
    """Return whether batches may overlap, or be written ahead, in a pool of so many processes."""
    state = FastPaths.of(app).state(path)
    if state.is_on and pool not in _POOLS[path]:
        return PathState(path, f"the pool is {pool}")
    if state.is_on and processes != 1:
        what = "threads" if pool == "threads" else "processes"
        return PathState(path, f"this worker may have {processes} {what}: normal")
    if state.is_on and app.conf.get("result_backend_thread_safe"):
        # One buffer of results, for two threads.
        return PathState(path, "result_backend_thread_safe is on")
    return state


#: The pools that have each path.
_POOLS = {"overlap": ("prefork", "threads"), "write_ahead": ("prefork",)}


def may_overlap(task: Any) -> bool:
    """Return whether a task's model may run on another thread than its items' tracers."""
    return (  # what a `__call__` sets up, or a backend has, may be there for one thread only
        isinstance(task, BatchTask)
        and task.traces_items
        and type(task).__call__ is Task.__call__
        and uses_backend_of_app(task)
    )


#: Seconds until the event loop, which writes to the pool as soon as it has nothing else to
#: do, has probably done so.
_WRITTEN_SOON = 0.001

_precedence = attrgetter("precedence")


class JobSubmitter:
    """Hands batch jobs to the pool of one consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        #: Jobs that wait for the place behind the running one, the next one first.
        self._held: list[BatchJob] = []
        self._submitted: set[BatchJob] = set()
        #: Submitted jobs that occupy no slot of Celery's pool.
        self._without_slot: set[BatchJob] = set()
        #: The event loop's timer.
        self._retry: Any = None

    def submit(self, job: BatchJob) -> None:
        """Hand a job to the pool now, or as soon as it can be written behind the running one."""
        if (
            self._pipe_to_one
            and self._submitted
            and not job.is_suspect
            and self._can_wait(job.task)
        ):
            insort(self._held, job, key=_precedence)
            self.submit_held()
        else:
            self._submit(job)

    def can_overtake(self, task: Any) -> bool:
        """Return whether a batch of this task would run before a less urgent one that is ready."""
        return (
            self._pipe_to_one is not None
            and self._can_wait(task)
            and not any(job.is_suspect for job in self._submitted)
        )

    def submit_held(self) -> None:
        """Submit the jobs that are held, as far as there are places behind the running one."""
        self.close()
        self._mark_busy()
        while self._held:
            pipe = self._pipe_to_one
            if not self._submitted or pipe is None:
                self._submit(self._held.pop(0))
            elif not self._has_place_behind(self._held[0]):
                return
            elif pipe.is_written:
                self._submit_behind(self._held.pop(0), pipe)
            else:
                # The pool does not report when the job before has been written.  If this one
                # waited until that one is accepted, it could not overtake it any more.
                self._retry = self._consumer.hub.call_later(_WRITTEN_SOON, self.submit_held)
                return

    def close(self) -> None:
        """Cancel the timer, which may be lost with a connection."""
        retry, self._retry = self._retry, None
        if retry is not None:
            retry.cancel()

    def _has_place_behind(self, job: BatchJob) -> bool:
        """Return whether a job may be written behind what runs, before what it overtakes."""
        if any(each.is_suspect for each in self._submitted):
            return False
        ready = [each for each in self._submitted if not each.accepted]
        runs = len(ready) < len(self._submitted)
        return not ready or (runs and len(ready) == 1 and job.precedence < ready[0].precedence)

    def accepted(self, job: BatchJob) -> None:
        """Note that a process has accepted a job."""
        if self._pipe_to_one:
            for other in self._submitted - {job}:
                if other.accepted:
                    other.neighbours.add(job)
                    job.neighbours.add(other)
        self.submit_held()

    def job_left(self, job: BatchJob) -> None:
        """Forget a job that has ended, or will not run."""
        self._submitted.discard(job)
        self._without_slot.discard(job)
        if job.answer is not None:  # else its process died, and its neighbours with it
            for other in self._submitted:
                other.neighbours.discard(job)
        job.neighbours.clear()
        if job in self._held:
            self._held.remove(job)
        self._mark_busy()

    def _mark_busy(self) -> None:
        """Mark the process as busy; the pool takes it for idle once it has ended any job."""
        pipe = self._pipe_to_one
        if pipe and pipe.is_written and any(job.runs_in(pipe) for job in self._submitted):
            pipe.mark_busy()

    def _can_wait(self, task: Any) -> bool:
        contested = is_contested(self._consumer.controller)
        return not contested and task.acks_late and may_overlap(task)

    @property
    def _pipe_to_one(self) -> PoolPipe | None:
        """The pipe, as long as the pool has one process only."""
        pipe = self._pipe
        return pipe if pipe is not None and pipe.is_only_one else None

    @cached_property
    def _pipe(self) -> PoolPipe | None:
        """The pipe to the pool's process; None where batches cannot overlap."""
        pool, controller = self._consumer.pool, self._consumer.controller
        if not (
            not PoolPipe.why_not(pool)
            and hasattr(getattr(controller, "semaphore", None), "_waiting")
            and overlap_state(
                self._consumer.app,
                controller.max_concurrency or controller.concurrency,
                "write_ahead",
            ).is_on
        ):
            return None
        release = controller.semaphore.release
        controller.semaphore.release = lambda: self._release(release)
        return PoolPipe(pool)

    def _submit(self, job: BatchJob) -> None:
        if self._pipe is not None:
            self._submitted.add(job)
        self._consumer.on_task_request(job)

    def _submit_behind(self, job: BatchJob, pipe: PoolPipe) -> None:
        self._submitted.add(job)
        self._without_slot.add(job)
        try:
            job.execute_using_pool(self._consumer.pool)
        except TaskRevokedError:
            return  # no request is left of it, and its end has been reported
        pipe.mark_idle()

    def _release(self, release: Any) -> None:
        """Free a slot of the pool, unless a job runs without one, which then gets this one."""
        if self._without_slot:
            self._without_slot.pop()
        else:
            release()
