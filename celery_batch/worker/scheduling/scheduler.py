"""
The way of a request through the main process, from top to bottom.

1. A message has become a request: `add` puts it into the queue of its task.
2. `dispatch` looks for task queues whose next batch has a place to go.
3. `_form_batch` takes a batch from one task queue, and a slot for it.
4. The batch goes to a pool process as one job, which calls `on_start` and `on_end`.

Behind that are the connections of the consumer, and what other parts ask of the scheduler.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.worker import state
from celery.worker.state import task_ready

from celery_batch.batching.batcher import Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.dispatch.follow_up import FollowUp, deadline_passed
from celery_batch.worker.dispatch.job_submitter import JobSubmitter
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.metrics.recorder import BatchRecorder
from celery_batch.worker.scheduling.completion import Completion
from celery_batch.worker.scheduling.prefetch import FetchLimits
from celery_batch.worker.scheduling.priority import TaskPriority, is_shared
from celery_batch.worker.scheduling.redelivery import Known, RedeliveryCache, is_suspect
from celery_batch.worker.scheduling.slots import Slots
from celery_batch.worker.scheduling.task_queue import TaskQueue
from celery_batch.worker.scheduling.timer import BatchTimer

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)

#: Seconds in which the event loop reads the messages that have come.
_READ_TIME = 0.001

#: Seconds after which the next batch runs though the broker has not replied.
_READ_TIMEOUT = 1.0


class Scheduler:
    """The task queues of one consumer, which share the slots of its pool."""

    def __init__(self, consumer: Any, refuse: Callable[[Any, str], None]) -> None:
        self._consumer = consumer
        #: Replaced for each connection to a broker that can record them.
        self.running_messages = RunningMessages()
        #: Records what became of each batch.
        self.recorder = BatchRecorder()
        self._has_failed_to_record = False
        self.slots = Slots(consumer.pool)
        self._task_queues: dict[str, TaskQueue] = {}
        #: How many more messages are of use.
        self.fetch_limits = FetchLimits(self._task_queues, self.slots)
        self._priority = TaskPriority()
        self._submitter = JobSubmitter(consumer)
        self._redelivery = RedeliveryCache()
        self._completion = Completion(consumer, self._redelivery, refuse, self._enqueue_again)
        self._timer = BatchTimer(consumer.hub, self._on_timer)
        #: Whether the event loop runs and batches may leave.
        self.is_open = False
        self._is_adding_many = False
        #: Whether messages are read one at a time.  Where batches run between them, all would be
        #: of one request if the first of a burst did not wait for the next.
        self.reads_singly = True
        #: The `BulkFetch` of the present connection, if it has one.
        self.fetch: Any = None
        self._read_until = 0.0

    def add(self, task_queue: TaskQueue, request: Any) -> None:
        """Add Celery's request to its task queue, unless it runs already or has been answered."""
        known = self._redelivery.pop(request)
        if known is Known.ANSWERED and request.has_result:
            task_ready(request)
            request.acknowledge()
            return
        if isinstance(known, BatchJob) and known.adopt(request):
            if known.accepted:
                self.running_messages.started([request])
            return
        if known is None and is_suspect(request, self._consumer):
            request.is_redelivery_suspect = True
        if task_queue.is_paused:
            task_queue.set_aside(request)
            return
        if task_queue.sheds and (late := task_queue.late_by(request, self._urgency(request))):
            self.recorder.failed_waiting(request)
            self._completion.refuse(request, late, task_queue.policy.target_latency or late)
            return
        task_queue.add(request, urgency=self._urgency(request))
        if not self._is_adding_many:
            self.dispatch()

    @contextmanager
    def adding_many(self) -> Iterator[None]:
        """Dispatch once, after all requests of this context have been added."""
        self._is_adding_many = True
        try:
            yield
        finally:
            self._is_adding_many = False
        self.dispatch()

    def _urgency(self, request: Any) -> int:
        """Return the urgency that a request's priority means: 9 goes first on AMQP, 0 on Redis."""
        priority = (request.delivery_info or {}).get("priority")
        if not priority or not isinstance(priority, int):
            return 0
        sign = {"amqp": -1, "redis": 1}.get(self._consumer.connection.transport.driver_type, 0)
        return sign * priority

    def dispatch(self) -> None:
        """Submit every batch that may leave now; set the timer for the next one."""
        self.running_messages.drop_taken_over()
        while self.is_open and not state.should_terminate:
            waiting = [task_queue for task_queue in self if not task_queue.is_empty]
            self._fail_past_deadline(waiting)
            delays = [task_queue.next_deadline for task_queue in waiting]
            is_contested = any(task_queue.is_full for task_queue in waiting)
            ready_in = self._seconds_until_ready()
            for task_queue in self._priority.order(waiting):
                formed = self._form_batch(task_queue, ready_in, is_contested=is_contested)
                if isinstance(formed, BatchJob):
                    # Outside the lock: the solo pool runs the whole batch in this call.
                    self._submitter.submit(formed)
                    if self._reads_first:
                        self._read_messages()
                        return
                    break
                delays.append(formed.seconds)
            else:
                seconds = min((each for each in delays if each is not None), default=None)
                if seconds is not None:
                    self._timer.set(seconds)
                return

    @property
    def _reads_first(self) -> bool:
        """Whether to read messages that came while a batch ran, before the next one leaves."""
        if not self.slots.run_inline or self._consumer.hub is None:
            return False
        return is_shared(list(self), time.monotonic())

    def _read_messages(self) -> None:
        if self.fetch is not None:
            self.fetch.refresh()
        self._read_until = time.monotonic() + _READ_TIMEOUT
        self._timer.set(_READ_TIME)

    def _fail_past_deadline(self, waiting: list[TaskQueue]) -> None:
        for task_queue in waiting:
            for request in task_queue.expire():
                self.recorder.failed_waiting(request)
                self._completion.notify(deadline_passed(request))

    def _seconds_until_ready(self) -> float:
        """Return in how many seconds a batch is to be made ready behind a running one."""
        slots = self.slots
        with slots.lock:
            if slots.is_free or not slots.has_room_ahead:
                return 0.0
            return self._priority.seconds_until_ready(
                list(self), slots.jobs, slots.processes, time.monotonic()
            )

    def _form_batch(
        self, task_queue: TaskQueue, ready_in: float, *, is_contested: bool
    ) -> BatchJob | Wait:
        """Return the next batch of a task as a job that has a slot, or how long to wait for it."""
        slots = self.slots
        with slots.lock:
            full_only, earns_share = False, True
            if not slots.has_room_ahead:  # it may take the place of a batch that is ready
                if not self._submitter.can_overtake(task_queue.task):
                    return Wait(None)
                overtaken = self._priority.overtaken_by(task_queue, list(slots.jobs))
                if overtaken is None:
                    return Wait(None)
                # The overtaken batch earns the share of its task, so waiting requests do not.
                earns_share = overtaken.task is not task_queue.task
            elif not slots.is_free:
                if ready_in:
                    return Wait(ready_in)
                # Contested while some task has a full batch: as good as a free slot, for if this
                # task lingered, the others would always get it.
                full_only = not is_contested
            batch = task_queue.next_batch(full_only=full_only, earns_share=earns_share)
            if isinstance(batch, Wait):
                return batch
            job = BatchJob(task_queue.task, batch, self, task_queue.policy)
            job.is_only_batch = (
                not slots.jobs and task_queue.is_empty and all(each.is_empty for each in self)
            )
            self._priority.batch_left(task_queue, job, list(self))
            for other in list(slots.jobs):  # a signal handler may end one
                if not other.accepted and job.urgency < other.urgency:
                    self._priority.overtake(other, self.policy(other.task).low_priority_share)
            slots.jobs.add(job)
            return job

    def _on_timer(self, late: float) -> None:
        is_reading = self.fetch is not None and self.fetch.is_refreshing
        if is_reading and time.monotonic() < self._read_until:
            self._timer.set(_READ_TIME)
            return
        for task_queue in self:
            if late > task_queue.policy.linger_seconds:
                task_queue.restart_linger()
        self.dispatch()

    @property
    def load_seconds(self) -> float:
        """For how long a process of the pool loads its models; 0 on other pools than prefork."""
        warm_up = WorkerContext.of(self._consumer.controller).warm_up
        return 0.0 if warm_up is None else warm_up.seconds

    def on_start(self, job: BatchJob) -> None:
        """A pool process has accepted a job."""
        self.running_messages.started(job.requests)
        with self.slots.lock:
            self._priority.batch_began(job)
            has_freed_slot = self.slots.finishing > 0
        self._submitter.accepted(job)
        if has_freed_slot and self._consumer.hub is not None:
            self._consumer.hub.call_soon(self.dispatch)  # on the threads pool this is its thread

    def on_end(self, job: BatchJob, follow_up: FollowUp) -> None:
        """A job has ended: free its slot, and complete its requests."""
        self._job_left(job)
        self._submitter.submit_held()
        self._record(job, follow_up)
        if job.accepted:
            self._completion.reject_bad(follow_up)
            if job.answer is not None and job.answer.broken:
                self.slots.replace_process(job.pid, job.answer.broken)
        self._completion.run_again(follow_up)
        if self.slots.run_inline or self._consumer.hub is None or not self.is_open:
            self._completion.complete(follow_up)
            if not self.slots.run_inline:  # else it was `dispatch` that ran the batch
                self.dispatch()
            return
        # A batch that is ready now, or messages that can be read now, must not wait for the
        # bookkeeping of this one.
        self._completion.complete_after(self.dispatch, follow_up)

    def _job_left(self, job: BatchJob) -> None:
        with self.slots.lock:
            self.slots.jobs.discard(job)
            self._priority.batch_ended(self.task_queue(job.task), job)
        self._submitter.job_left(job)
        with self._errors_logged(job):
            self.task_queue(job.task).job_left(job)

    def _record(self, job: BatchJob, follow_up: FollowUp) -> None:
        """Note what a batch has taken, and what became of its requests."""
        task_queue = self.task_queue(job.task)
        with self._errors_logged(job):
            if job.answer is not None:
                task_queue.history.answered(job.answer, job.batches)
            may_be_unread = self.slots.run_inline and self.reads_singly
            task_queue.batch_ended(job, may_be_unread=may_be_unread)
            self.recorder.ended(job, follow_up)

    @contextmanager
    def _errors_logged(self, job: BatchJob) -> Iterator[None]:
        """Log an error in learning from a job, whose requests must get their ends all the same."""
        try:
            yield
        except Exception:
            # Once: the error is probably the same for all batches.
            level = logging.DEBUG if self._has_failed_to_record else logging.ERROR
            self._has_failed_to_record = True
            logger.log(level, "Could not record a batch of %s", job.task.name, exc_info=True)

    def _enqueue_again(self, request: Any) -> bool:
        """Queue a request that has left its task queue before; return whether it can run again."""
        if not self.is_open or request.is_disowned:
            return False
        self.task_queue(request.task).add(request, urgency=self._urgency(request))
        return True

    def open(self) -> None:
        """Let batches leave; called for each new connection."""
        self.is_open = True
        self.recorder.begin()

    def close(self, *, restarting: bool) -> None:
        """Let no batches leave any more, and return their requests to the broker."""
        self.is_open = False
        self._timer.cancel()
        self._submitter.close()
        self._completion.close(restarting=restarting)
        if not restarting:
            self.running_messages.stop_receiving()
        not_run = [request for task_queue in self for request in task_queue.clear()]
        for job in list(self.slots.jobs):
            # On a restart the prefork pool silently discards what no process has accepted;
            # at shutdown it still runs what it was given.
            is_flushed = restarting and self.slots.discards_on_disconnect and not job.accepted
            if not job.submitted or (is_flushed and not job.is_in_pool):
                job.forget()
                not_run += job.requests
                self._job_left(job)
            elif restarting:
                job.disown()
                self._redelivery.add_running(job)
        self._completion.fail_not_run(not_run)
        if not restarting:
            left = [request for request in not_run if not request.acknowledged]
            self.running_messages.give_back_last(left)

    def give_back(self, requests: list[Any]) -> None:
        """Return requests that are in no queue to the broker, over the present connection."""
        self._redelivery.add_not_run(requests)
        self.running_messages.give_back(requests)
        for request in requests:
            task_ready(request)

    def drop(self, tags: set[str]) -> None:
        """Drop the requests with these delivery tags that no pool process has: others run them."""
        for task_queue in self:
            task_queue.drop(tags)
        for job in list(self.slots.jobs):
            job.drop(tags)

    def kill_running(self) -> None:
        """Kill the processes of batches that can no longer be acknowledged, as others run them."""
        jobs = [job for job in list(self.slots.jobs) if job.accepted and job.task.acks_late]
        self.slots.kill({job.pid for job in jobs if job.pid is not None})

    def task_queue(self, task: Any) -> TaskQueue:
        """Return the queue of a batch task, made on first use."""
        if task.name not in self._task_queues:
            slots = self.slots
            self._task_queues[task.name] = TaskQueue(task, slots.lock, lambda: slots.processes)
        return self._task_queues[task.name]

    def policy(self, task: Any) -> BatchPolicy:
        """Return when the batches of a task leave."""
        return self.task_queue(task).policy

    def __iter__(self) -> Iterator[TaskQueue]:
        # A copy: without an event loop batches leave on several threads, while a message of
        # another task adds a queue.
        return iter(list(self._task_queues.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._task_queues

    def resume(self, task_queue: TaskQueue, owner: object) -> None:
        """Resume a task for the owner that paused it, unless another owner has paused it, too."""
        for request in task_queue.resume(owner):
            task_queue.add(request, urgency=self._urgency(request))
        self.dispatch()

    def report(self) -> dict[str, Any]:
        """Return the report of each task queue, with its running batches, by the task's name."""
        running = Counter(job.task.name for job in list(self.slots.jobs))
        task_queues = sorted(self._task_queues.items())
        with self.slots.lock, self.recorder.counts() as meter:  # the caller may be another thread
            return {
                name: {**task_queue.report(meter.tally(name)), "running": running[name]}
                for name, task_queue in task_queues
            }
