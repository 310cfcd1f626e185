"""Sends the next batch to the pool process before the running one ends.

Celery writes a job to a process when that is idle; the device would wait for it.
With one process there is no other that a batch could be better kept for, so the
next one is written behind the one that runs.

Rule 1: one batch at most lies behind one that runs, and one that is more urgent; and
        nothing but batches does.  The process takes the more urgent one first.
Rule 2: who was there first goes first: a batch is kept for the place behind only
        while no other task waits for the process.
Rule 3: a suspect has the process to itself.
Rule 4: what was acknowledged before it ran is never written ahead: should the
        connection break, it would run here and elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from billiard.pool import READY
from celery import Task
from celery.concurrency.asynpool import AsynPool
from celery.exceptions import TaskRevokedError

from celery_batch.task import BatchTask
from celery_batch.worker.dispatch.job import BatchJob

__all__ = [
    "WriteAhead",
    "is_wanted",
    "may_overlap",
]


def is_wanted(app: Any, processes: int) -> bool:
    """
    Say whether a worker's batches may overlap at all.

    Args:
        app: The Celery app.
        processes: Most pool processes that this worker will have.  With several, a
            batch that is ready is for whichever process is idle first.
    """
    conf = app.conf
    shared = conf.get("result_backend_thread_safe")  # one buffer of results, for two threads
    return bool(processes == 1 and conf.get("batch_overlap", True) and not shared)


def may_overlap(task: Any) -> bool:
    """
    Say whether a task's model may run on another thread than its items' tracers.

    What a ``__call__`` of its own sets up may be there for its own thread only, and so
    may the use of a backend of its own, given to the decorator or put there later.
    """
    return (
        isinstance(task, BatchTask)
        and type(task).__call__ is Task.__call__
        and type(task).backend is Task.backend
        and task._backend is None  # noqa: SLF001 (the property would make one)
    )


#: Seconds until the event loop, which writes to the pool as soon as it has nothing else to
#: do, is taken to have done so.
_WRITTEN_SOON = 0.001


class WriteAhead:
    """
    Hands batch jobs to the pool of one consumer.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._held: deque[BatchJob] = deque()
        self._handed_over: set[BatchJob] = set()
        self._without_slot: set[BatchJob] = set()
        self._is_on: bool | None = None
        #: Of the event loop's timer.
        self._look: Any = None

    def submit(self, job: BatchJob) -> None:
        """Hand a job to the pool now, or as soon as it can be written behind the running one."""
        if (
            self._is_possible
            and self._has_one_process
            and self._handed_over
            and not job.is_suspect
            and self._can_wait(job.task)
        ):
            self._hold(job)
            self.go_on()
        else:
            self._hand_over(job)

    def can_overtake(self, task: Any) -> bool:
        """Say whether a batch of this task would run before a less urgent one that is ready."""
        return bool(
            self._is_on
            and self._has_one_process
            and self._can_wait(task)
            and not any(job.is_suspect for job in self._handed_over)
        )

    def go_on(self) -> None:
        """Hand over what is held, if its time has come."""
        self._mark_busy()
        while self._held:
            if not self._handed_over or not self._has_one_process:
                self._hand_over(self._held.popleft())
            elif not self._may_lie_behind(self._held[0]):
                return
            elif self._has_written_all:
                self._write_behind(self._held.popleft())
            else:
                self._look_again()
                return

    def _look_again(self) -> None:
        """
        Go on when the job before has been written, of which the pool says nothing.

        Whoever may go before a batch that is ready would else be held until that one is
        taken up, and sit it out.
        """
        if self._look is None:
            self._look = self._consumer.hub.call_later(_WRITTEN_SOON, self._go_on_again)

    def _go_on_again(self) -> None:
        self._look = None
        self.go_on()

    def close(self) -> None:
        """Look no more until something is held again: a connection may take its timers along."""
        look, self._look = self._look, None
        if look is not None:
            look.cancel()

    def _hold(self, job: BatchJob) -> None:
        """Put a job behind those that are no less urgent."""
        held, self._held = self._held, deque()
        self._held.extend(each for each in held if each.urgency <= job.urgency)
        self._held.append(job)
        self._held.extend(each for each in held if each.urgency > job.urgency)

    def _may_lie_behind(self, job: BatchJob) -> bool:
        """Say whether it may be written now, behind what runs and before what it overtakes."""
        if any(each.is_suspect for each in self._handed_over):
            return False
        ready = [each for each in self._handed_over if not each.accepted]
        runs = len(ready) < len(self._handed_over)
        return not ready or (runs and len(ready) == 1 and job.urgency < ready[0].urgency)

    def accepted(self, job: BatchJob) -> None:
        """Take note that a process has taken a job."""
        if self._is_on and self._has_one_process:
            for other in self._handed_over - {job}:
                if other.accepted:
                    other.neighbours.add(job)
                    job.neighbours.add(other)
        self.go_on()

    def left(self, job: BatchJob) -> None:
        """Forget a job that has ended, or will not run."""
        self._handed_over.discard(job)
        self._without_slot.discard(job)
        if job.answer is not None:  # else its process died, under its neighbours too
            for other in self._handed_over:
                other.neighbours.discard(job)
        job.neighbours.clear()
        if job in self._held:
            self._held.remove(job)
        self._mark_busy()

    def _mark_busy(self) -> None:
        """Tell Celery that the process is busy; it takes it for idle when it has ended any job."""
        runs = any(job.accepted for job in self._handed_over)
        if self._is_on and runs and self._has_one_process and self._has_written_all:
            self._pool._busy_workers.add(self._pending)  # noqa: SLF001

    @property
    def _pool(self) -> Any:
        """Billiard's pool, once it runs."""
        return getattr(self._consumer.pool, "_pool", None)

    @property
    def _pending(self) -> int:
        """What the one process is written to by."""
        return int(self._pool._pool[0].inqW_fd)  # noqa: SLF001

    @property
    def _semaphore(self) -> Any:
        return self._consumer.controller.semaphore

    def _can_wait(self, task: Any) -> bool:
        somebody_waits = bool(self._semaphore._waiting)  # noqa: SLF001 (no public look at it)
        return not somebody_waits and task.acks_late and may_overlap(task)

    @property
    def _has_one_process(self) -> bool:
        """Whether there is one process and no more are wanted; pools can be told to grow."""
        pool = self._pool
        return bool(pool._processes == len(pool._pool) == 1)  # noqa: SLF001

    @property
    def _has_written_all(self) -> bool:
        return not self._pool.outbound_buffer

    @property
    def _is_possible(self) -> bool:
        if self._is_on is None:
            self._is_on = self._is_of_use()
            if self._is_on:
                self._count_every_end()
                release = self._semaphore.release
                self._semaphore.release = lambda: self._release(release)
        return self._is_on

    def _is_of_use(self) -> bool:
        controller: Any = getattr(self._consumer, "controller", None)
        pool = self._pool
        return (
            isinstance(pool, AsynPool)
            and hasattr(pool, "_busy_workers")
            and not pool.synack
            and pool._maxtasksperchild != 1  # noqa: SLF001
            and hasattr(getattr(controller, "semaphore", None), "_waiting")
            and is_wanted(self._consumer.app, controller.max_concurrency or controller.concurrency)
        )

    def _hand_over(self, job: BatchJob) -> None:
        if self._is_on:
            self._handed_over.add(job)
        self._consumer.on_task_request(job)

    def _write_behind(self, job: BatchJob) -> None:
        self._handed_over.add(job)
        self._without_slot.add(job)
        try:
            job.execute_using_pool(self._consumer.pool)
        except TaskRevokedError:
            return  # nothing is left of it, and it has said so
        self._pool._busy_workers.discard(self._pending)  # noqa: SLF001

    def _release(self, release: Any) -> None:
        """Free a slot of the pool, unless a job runs without one: then it has this one."""
        if self._without_slot:
            self._without_slot.pop()
        else:
            release()

    def _count_every_end(self) -> None:
        """
        Have billiard count each job that ends.

        A process that is to end waits until all its words were heard, by the count
        of its jobs; and billiard takes a process to do one job after another.
        """
        pool = self._pool
        handlers = pool._result_handler.state_handlers  # noqa: SLF001
        count_and_tell = handlers[READY]

        def on_ready(job: Any, i: Any, obj: Any, fd: Any) -> None:
            result = pool._cache.get(job)  # noqa: SLF001
            pid = getattr(result, "_worker_pid", None)
            counter = pool._on_ready_counters.get(pid)  # noqa: SLF001
            before = counter.value if counter is not None else 0
            count_and_tell(job, i, obj, fd)
            if counter is not None and counter.value == before:
                with counter.get_lock():
                    counter.value += 1

        handlers[READY] = on_ready
