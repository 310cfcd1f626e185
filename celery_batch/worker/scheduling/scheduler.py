"""Schedules batches of all tasks of a worker: takes requests in, hands jobs to the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery.worker import state
from celery.worker.state import task_ready, task_reserved

from celery_batch.batching.batch import Batch
from celery_batch.worker.dispatch.completion import Completion
from celery_batch.worker.dispatch.follow_up import FollowUp, deadline_passed, not_run
from celery_batch.worker.dispatch.handler_call import HandlerCall
from celery_batch.worker.dispatch.job import BatchJob
from celery_batch.worker.dispatch.job_submitter import JobSubmitter
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.intake.dead_letters import DeadLetters
from celery_batch.worker.metrics.recorder import BatchRecorder
from celery_batch.worker.scheduling.fetch_limits import FetchLimits
from celery_batch.worker.scheduling.priority import TaskPriority
from celery_batch.worker.scheduling.redelivery import Known, RedeliveryCache, is_suspect
from celery_batch.worker.scheduling.slots import Slots
from celery_batch.worker.scheduling.task_queue import TaskQueue
from celery_batch.worker.scheduling.timer import BatchTimer

__all__ = ["Scheduler"]


class Scheduler:
    """
    The task queues of one consumer, which share the slots of its pool.

    Args:
        consumer: Celery's consumer.
        refuse: Called with a request whose body could not be decoded, and the reason.
    """

    def __init__(self, consumer: Any, refuse: Callable[[Any, str], None]) -> None:
        self._consumer = consumer
        self._refuse = refuse
        #: Replaced for each connection to a broker that can record them.
        self.running_messages = RunningMessages()
        #: Records what became of each batch.
        self.recorder = BatchRecorder()
        self._slots = Slots(consumer.pool)
        self._submitter = JobSubmitter(consumer)
        self._priority = TaskPriority()
        self._task_queues: dict[str, TaskQueue] = {}
        self._jobs: set[BatchJob] = set()
        #: How many more messages are of use.
        self.fetch_limits = FetchLimits(self._task_queues, self._jobs, self._slots)
        self._redelivery = RedeliveryCache()
        self._dead_letters = DeadLetters(consumer)
        #: Requests whose messages are acknowledged once their dead letters are written.
        self._poison: set[Any] = set()
        self._completion = Completion(consumer.hub, self._redelivery, self._retry_notification)
        self._timer = BatchTimer(consumer.hub, self._on_timer)
        self._is_open = False
        self._is_adding_many = False

    def task_queue(self, task: Any) -> TaskQueue:
        """Return the queue of a batch task, made on first use."""
        if task.name not in self._task_queues:
            self._task_queues[task.name] = TaskQueue(task, self._slots)
        return self._task_queues[task.name]

    def __iter__(self) -> Iterator[TaskQueue]:
        return iter(list(self._task_queues.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._task_queues

    @property
    def is_open(self) -> bool:
        """Whether the event loop runs and batches may leave."""
        return self._is_open

    def open(self) -> None:
        """Let batches leave; called for each new connection."""
        self._is_open = True
        self.recorder.begin()

    def close(self, *, restarting: bool) -> None:
        """
        Let no more batches leave, and return their requests to the broker.

        Args:
            restarting: The connection is lost and another will follow; else the
                worker is shutting down and its running batches finish.
        """
        self._is_open = False
        self._timer.cancel()
        self._submitter.close()
        if restarting:
            for request in self._poison:
                request.disown()
        self._completion.flush(restarting=restarting)
        if restarting:  # their messages may come again before the dead letters are written
            self._redelivery.add_ended(list(self._poison))
        else:
            self._dead_letters.close()
        for task_queue in self._task_queues.values():
            self._requests_not_run(task_queue.clear())
        for job in list(self._jobs):
            # On a restart the prefork pool silently discards what no process has accepted;
            # at shutdown it still runs what it was given.
            is_flushed = restarting and self._slots.discards_on_disconnect and not job.accepted
            if not job.submitted or (is_flushed and not job.is_in_pool):
                job.forget()
                self._requests_not_run(job.requests)
                self._job_left(job)
            elif restarting:
                job.disown()
                self._redelivery.add_running(job)

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
        alone = known is None and is_suspect(request, self._consumer)
        if task_queue.is_paused:
            task_queue.set_aside(request, alone=alone)
            return
        self._enqueue(task_queue, request, alone=alone)
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

    def _enqueue(self, task_queue: TaskQueue, request: Any, *, alone: bool = False) -> None:
        """Add a request, also to a paused queue; alone if it may kill its process, or must."""
        alone = alone or request.losses > 0 or request.deadline is not None
        task_queue.add(request, urgency=self._urgency(request), alone=alone)

    def _urgency(self, request: Any) -> int:
        """Return the urgency that a request's priority means: 9 goes first on AMQP, 0 on Redis."""
        priority = (request.delivery_info or {}).get("priority")
        if not priority or not isinstance(priority, int):
            return 0
        sign = {"amqp": -1, "redis": 1}.get(self._consumer.connection.transport.driver_type, 0)
        return sign * priority

    def resume(self, task_queue: TaskQueue, owner: object) -> None:
        """Resume a task for the owner that paused it, unless another owner has paused it, too."""
        for request, alone in task_queue.resume(owner):
            self._enqueue(task_queue, request, alone=alone)
        self.dispatch()

    def give_back(self, requests: list[Any]) -> None:
        """Return requests that are in no queue to the broker, over the present connection."""
        self._redelivery.add_not_run(requests)
        self.running_messages.give_back(requests)
        for request in requests:
            task_ready(request)

    def drop(self, tags: set[str]) -> None:
        """Drop the requests with these delivery tags that no pool process has: others run them."""
        for task_queue in self._task_queues.values():
            task_queue.drop(tags)
        for job in list(self._jobs):
            job.drop(tags)

    def kill_running(self) -> None:
        """Kill the processes of batches that can no longer be acknowledged, as others run them."""
        jobs = [job for job in list(self._jobs) if job.accepted and job.task.acks_late]
        self._slots.kill({job.pid for job in jobs if job.pid is not None})

    def dispatch(self) -> None:
        """Submit every batch that may leave now; set the timer for the next one."""
        self.running_messages.drop_taken_over()
        while self._is_open and not state.should_terminate:
            self._fail_past_deadline()
            delays = [task_queue.next_deadline for task_queue in self._task_queues.values()]
            task_queues = self._priority.order(self._task_queues.values())
            contested = any(task_queue.is_full for task_queue in task_queues)
            for task_queue in task_queues:
                decision = task_queue.take(
                    contested=contested, overtaken=self._overtaken_by(task_queue)
                )
                if isinstance(decision, Batch):
                    self._submit(task_queue, decision)
                    break
                delays.append(decision.seconds)
            else:
                seconds = min((each for each in delays if each is not None), default=None)
                if seconds is not None:
                    self._timer.set(seconds)
                return

    def _overtaken_by(self, task_queue: TaskQueue) -> BatchJob | None:
        if self._slots.has_room_ahead or not self._submitter.can_overtake(task_queue.task):
            return None
        return self._priority.overtaken_by(task_queue, list(self._jobs))

    def _submit(self, task_queue: TaskQueue, batch: Batch[Any]) -> None:
        job = BatchJob(task_queue.task, batch, self, task_queue.policy.max_batch_size)
        job.is_only_batch = not self._jobs and all(each.is_empty for each in self)
        self._priority.batch_left(task_queue, job, self._task_queues.values())
        for other in list(self._jobs):  # jobs of a thread pool may end at any time
            if not other.accepted and job.urgency < other.urgency:
                share = self.task_queue(other.task).policy.low_priority_share
                self._priority.overtake(other, share)
        self._jobs.add(job)
        self._submitter.submit(job)

    def _fail_past_deadline(self) -> None:
        for task_queue in self._task_queues.values():
            for request in task_queue.expire():
                self.recorder.failed_waiting(request)
                self._completion.notify(deadline_passed(request))

    def _on_timer(self, late: float) -> None:
        for task_queue in self._task_queues.values():
            if late > task_queue.policy.linger_seconds:
                task_queue.restart_linger()
        self.dispatch()

    def before_submit(self) -> None:
        """Drop what other workers have taken from a batch that waited for its process."""
        self.running_messages.drop_taken_over()

    def on_start(self, job: BatchJob) -> None:
        """A pool process has accepted a job."""
        self.running_messages.started(job.requests)
        self._submitter.accepted(job)

    def on_end(self, job: BatchJob, follow_up: FollowUp) -> None:
        """A job has ended: free its slot, and complete its requests."""
        self._job_left(job)
        self._submitter.submit_held()
        self.recorder.ended(job, follow_up)
        if job.accepted:
            self._after_run(job, follow_up)
        self.task_queue(job.task).batch_ended(job)
        follow_up.handler_calls += self._run_again(job.task, follow_up)
        if self._slots.run_inline or self._consumer.hub is None or not self._is_open:
            self._completion.complete(follow_up)
            if not self._slots.run_inline:  # else it was `dispatch` that ran the batch
                self.dispatch()
            return
        # A batch that is ready now, or messages that can be read now, must not wait for the
        # bookkeeping of this one.
        self._completion.complete_after(self.dispatch, follow_up)

    def _after_run(self, job: BatchJob, follow_up: FollowUp) -> None:
        self.task_queue(job.task).count_answer(job.answer)
        for request, reason in follow_up.refused:
            if not request.is_done:  # revoked while it ran: its end has been announced
                self._refuse(request, reason)
        for request, error in follow_up.poison:
            self._poison.add(request)
            request.before_end = partial(self._write_dead_letter, request, error)
        if job.answer is not None and job.answer.broken:
            self._slots.replace_process(job.pid, job.answer.broken)

    def _write_dead_letter(
        self, request: Any, error: Exception, acknowledge: Callable[[], object]
    ) -> None:
        """Write a copy of a poisonous request before it is acknowledged."""

        def then() -> None:
            self._poison.discard(request)
            acknowledge()
            self._redelivery.add_ended([request])

        self._dead_letters.write(request, error, then)

    def _run_again(self, task: Any, follow_up: FollowUp) -> list[HandlerCall]:
        """Queue requests again; return the handler calls of those that cannot run again."""
        task_queue, handler_calls = self.task_queue(task), []
        again = [(request, True) for request in follow_up.run_alone]
        again += [(request, False) for request in follow_up.run_again]
        for request, alone in again:
            if self._is_open and not request.is_disowned:
                self._enqueue(task_queue, request, alone=alone)
            elif request.acknowledged:
                handler_calls += not_run(request)
            else:  # its message is the broker's again, or will be
                task_ready(request)
                self._redelivery.add_not_run([request])
        return handler_calls

    def _requests_not_run(self, requests: Iterable[Any]) -> None:
        """Leave requests to the broker; fail those whose messages it has no longer."""
        acknowledged = [request for request in requests if request.acknowledged]
        self._redelivery.add_not_run(each for each in requests if not each.acknowledged)
        for request in acknowledged:
            self._completion.notify(not_run(request))

    def _retry_notification(self, request: Any) -> None:
        """Run a request again whose end could not be stored: its caller must get an answer."""
        if self._is_open and not request.is_disowned:
            task_reserved(request)
            request.deadline = None  # only its end is missing, and storing that takes time
            self._enqueue(self.task_queue(request.task), request)

    def _job_left(self, job: BatchJob) -> None:
        with self._slots.lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._slots.in_flight -= 1
        self._submitter.job_left(job)
        self._priority.forget(job)

    @property
    def processes(self) -> int:
        """How many processes have models: those of the pool, or only the main process."""
        return self._slots.model_processes

    def report(self) -> dict[str, Any]:
        """Return the report of each task queue, with its running batches, by the task's name."""
        running = Counter(job.task.name for job in list(self._jobs))
        task_queues = sorted(self._task_queues.items())
        with self._slots.lock:  # the caller may be another thread
            return {
                name: {**task_queue.report(), "running": running[name]}
                for name, task_queue in task_queues
            }

    def ages(self, now: float) -> dict[str, float]:
        """Return by task for how many seconds its oldest request has waited here."""
        task_queues = list(self._task_queues.items())
        with self._slots.lock:  # the caller may be another thread
            return {name: max(now - each.oldest_held, 0.0) for name, each in task_queues}

    def idle(self, now: float) -> float:
        """Return for how many seconds processes had no batch in their models, together."""
        busy, processes = self.busy(), self.processes
        return self.recorder.ask(lambda meter: meter.idle.seconds(now, busy, processes))

    def busy(self) -> dict[int, float]:
        """Return which processes have a batch now, and since when."""
        jobs = list(self._jobs)
        known = [(job.began, job.pid) for job in jobs if job.began is not None and job.pid]
        # Of several on threads of one process, the first has kept it busy for longest.
        return {pid: began for began, pid in sorted(known, reverse=True)}
