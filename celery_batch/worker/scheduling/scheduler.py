"""Schedules batches of all tasks of a worker: free slots, prefetched messages, follow-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Any

from celery.worker import state
from celery.worker.state import task_ready, task_reserved

from celery_batch.batching.batch import Batch
from celery_batch.worker.dispatch.completion import Completion
from celery_batch.worker.dispatch.job import BatchJob
from celery_batch.worker.dispatch.notification import Notification
from celery_batch.worker.dispatch.outcome import Ending, give_up, not_run
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.dispatch.write_ahead import WriteAhead
from celery_batch.worker.intake.dead_letters import DeadLetters
from celery_batch.worker.metrics.recorder import BatchRecorder
from celery_batch.worker.scheduling.priority import TaskPriority
from celery_batch.worker.scheduling.redelivery import RedeliveryCache, RequestReceiver
from celery_batch.worker.scheduling.slots import Slots
from celery_batch.worker.scheduling.task_queue import TaskQueue
from celery_batch.worker.scheduling.timer import timer_for

__all__ = [
    "LEAST_URGENT",
    "PrefetchRoom",
    "Scheduler",
]


#: Room for messages that no lane waits for: what the prefetch allows.
_NO_LIMIT = 1 << 20


#: An urgency that overtakes nobody.
LEAST_URGENT = 1 << 31


class PrefetchRoom:
    """
    What the lanes of one consumer could still put to use.

    Args:
        scheduler: By the names of their tasks; there will be more.
        jobs: What is on its way.
        slots: Of the worker.
    """

    def __init__(
        self, scheduler: Mapping[str, TaskQueue], jobs: AbstractSet[BatchJob], slots: Slots
    ) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._slots = slots

    def left(self, tasks: Collection[str] | None, urgencies: Sequence[int]) -> list[int]:
        """
        Return how many more requests of each urgency could soon be put to use.

        That is to be run, made ready or gathered.  Nobody knows whose message comes next, so
        the fullest lane counts: what it cannot use is left in the broker for other workers.

        Args:
            tasks: Whose messages may come; None if anybody's may, who has room at all.
            urgencies: Of the messages; what they would overtake leaves them their room.
        """
        scheduler = [
            task_queue
            for name, task_queue in list(self._scheduler.items())
            if tasks is None or name in tasks
        ]
        most_urgent = min(urgencies)
        if any(task_queue.behind(most_urgent) for task_queue in scheduler):
            return [self._left(scheduler, tasks, urgency) for urgency in urgencies]
        # They would overtake nobody.
        return [self._left(scheduler, tasks, most_urgent)] * len(urgencies)

    def _left(
        self, scheduler: Collection[TaskQueue], tasks: Collection[str] | None, urgency: int
    ) -> int:
        batches, jobs = self._slots.capacity + self._slots.processes, list(self._jobs)
        rooms = [
            task_queue.room(batches, [job for job in jobs if job.task is task_queue.task], urgency)
            for task_queue in scheduler
        ]
        if tasks is None:
            rooms = [room for room in rooms if room > 0]
        return max(min(rooms, default=_NO_LIMIT), 0)

    def guaranteed(self, tasks: Collection[str] | None, urgencies: Sequence[int]) -> list[int]:
        """
        Return how many rows of each urgency ought to be read before more urgent messages.

        While more urgent ones are here, enough are to lie in line for their share of the
        next two batches, so that they can have it.

        Args:
            tasks: Whose messages may come; None if anybody's may.
            urgencies: Of the messages.
        """
        scheduler = [
            task_queue
            for name, task_queue in list(self._scheduler.items())
            if tasks is None or name in tasks
        ]
        waiting = [
            (task_queue, first)
            for task_queue in scheduler
            if (first := task_queue.urgency) is not None
        ]
        here = [first for _, first in waiting] + [job.urgency for job in list(self._jobs)]
        most_urgent = min(here, default=LEAST_URGENT)
        if most_urgent >= max(urgencies):
            return [0] * len(urgencies)
        policies = [task_queue.policy for task_queue in scheduler]
        share = ceil(2 * max(each.low_priority_share * each.max_batch_size for each in policies))
        return [
            max(share - sum(task_queue.rows_of(urgency) for task_queue, _ in waiting), 0)
            if most_urgent < urgency
            else 0
            for urgency in urgencies
        ]

    def behind(self, tasks: Collection[str], urgency: int) -> int:
        """Return how many wait in line whom newcomers for these tasks would overtake."""
        scheduler = list(self._scheduler.items())
        return sum(task_queue.behind(urgency) for name, task_queue in scheduler if name in tasks)


class Scheduler:
    """
    The lanes of one consumer, which share its pool's slots.

    Args:
        consumer: Celery's consumer.
        refuse: Refuses a request whose body proved malformed when it was decoded, with the reason.
    """

    def __init__(self, consumer: Any, refuse: Callable[[Any, str], None]) -> None:
        self._refuse = refuse
        #: Replaced for each connection to a broker that can record them.
        self.running_messages = RunningMessages()
        self._hub = consumer.hub
        self._slots = Slots(consumer.pool)
        self._write_ahead = WriteAhead(consumer)
        self._priority = TaskPriority()
        self._scheduler: dict[str, TaskQueue] = {}
        self._jobs: set[BatchJob] = set()
        #: For newcomers.
        self.room = PrefetchRoom(self._scheduler, self._jobs, self._slots)
        self._redelivery = RedeliveryCache()
        self._prepared_messages = DeadLetters(consumer)
        #: Whose messages are acknowledged when their copies have been kept.
        self._poison: set[Any] = set()
        self._completion = Completion(consumer.hub, self._redelivery, self._run_untold)
        self._receiver = RequestReceiver(consumer, self._redelivery, self._mark_running)
        self._timer = timer_for(consumer.hub, self._ring)
        #: Told what each batch was.
        self.watch = BatchRecorder()
        self._open = False
        self._is_gathering = False

    def task_queue(self, task: Any) -> TaskQueue:
        """Return the lane of a batch task, made on first use."""
        if task.name not in self._scheduler:
            self._scheduler[task.name] = TaskQueue(task, self._slots)
        return self._scheduler[task.name]

    def __iter__(self) -> Iterator[TaskQueue]:
        return iter(list(self._scheduler.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._scheduler

    @property
    def is_open(self) -> bool:
        """Whether the event loop runs and batches may leave."""
        return self._open

    def has_room(self) -> bool:
        """Say whether there is room for anybody's message, whosever it is."""
        return any(self.room.left(self._scheduler, [LEAST_URGENT]))

    def open(self) -> None:
        """Let batches leave; called for each new connection."""
        self._open = True
        self.watch.begin(self._slots.pids)

    def close(self, *, restarting: bool) -> None:
        """
        Let nothing more leave, and give back what has not left.

        Args:
            restarting: The connection is gone and another will come; else the
                worker is shutting down and its running batches finish.
        """
        self._open = False
        self._timer.cancel()
        self._write_ahead.close()
        if restarting:
            for request in self._poison:
                request.disown()
        self._completion.tell_rest(restarting=restarting)
        if restarting:
            for request in list(self._poison):  # which may come again before its copy is kept
                self._redelivery.ended(request)
        else:
            self._prepared_messages.close()
        for task_queue in self._scheduler.values():
            self._give_back(task_queue.forget())
        for job in list(self._jobs):
            # On a restart the pool has thrown away what no process had accepted,
            # without a word, if it is one that does; at shutdown it still runs what
            # it was given.
            is_flushed = restarting and self._slots.are_flushed and not job.accepted
            if not job.submitted or (is_flushed and not job.is_known):
                job.forget()
                self._give_back(job.requests)
                self._leave(job)
            elif restarting:
                job.disown()
                self._redelivery.still_run(job)

    def resume(self, task_queue: TaskQueue, by: object) -> None:
        """Let batches of a lane leave again that somebody has paused, if nobody else has, too."""
        for request, alone in task_queue.resume(by):
            self._receiver.line_up(task_queue, request, alone=alone)
        self.pump()

    def end_running(self) -> None:
        """End the processes of batches that cannot be acknowledged any more, as others run them."""
        jobs = [job for job in list(self._jobs) if job.accepted and job.task.acks_late]
        self._slots.kill({job.pid for job in jobs if job.pid is not None})

    def hand_back(self, requests: list[Any]) -> None:
        """Give requests in no line back to the broker, over a connection that lives."""
        self._redelivery.never_ran(requests)
        self.running_messages.give_back(requests)
        for request in requests:
            task_ready(request)

    def drop(self, tags: set[str]) -> None:
        """Drop whatever no pool process has and that has one of these tags: others run it."""
        for task_queue in self._scheduler.values():
            task_queue.drop(tags)
        for job in list(self._jobs):
            job.drop(tags)

    def add(self, task_queue: TaskQueue, task_request: Any) -> None:
        """Put Celery's request in its lane, and send off what may leave."""
        if self._receiver.admit(task_queue, task_request) and not self._is_gathering:
            self.pump()

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Let several come in before it is asked once what may leave."""
        self._is_gathering = True
        try:
            yield
        finally:
            self._is_gathering = False
        self.pump()

    def pump(self) -> None:
        """Send off every batch that may leave now; arm the alarm for the next that may."""
        self.running_messages.drop_lost()
        while self._open and not state.should_terminate:
            self._give_up_late_ones()
            soonest = [task_queue.next_deadline for task_queue in self._scheduler.values()]
            scheduler = self._priority.order(self._scheduler.values())
            contested = any(task_queue.is_full for task_queue in scheduler)
            for task_queue in scheduler:
                decision = task_queue.take(
                    contested=contested, overtaken=self._overtaken_by(task_queue)
                )
                if isinstance(decision, Batch):
                    self._submit(task_queue, decision)
                    break
                soonest.append(decision.seconds)
            else:
                seconds = min((each for each in soonest if each is not None), default=None)
                if seconds is not None:
                    self._timer.set(seconds)
                return

    def _overtaken_by(self, task_queue: TaskQueue) -> BatchJob | None:
        may = not self._slots.room_ahead and self._write_ahead.can_overtake(task_queue.task)
        return self._priority.overtaken_by(task_queue, list(self._jobs)) if may else None

    def report(self) -> dict[str, Any]:
        """Return each lane's report by the task's name, with its batches that have not ended."""
        running = Counter(job.task.name for job in list(self._jobs))
        scheduler = sorted(self._scheduler.items())
        with self._slots.lock:  # whoever looks may be another thread
            return {
                name: {**task_queue.report(), "running": running[name]}
                for name, task_queue in scheduler
            }

    @property
    def processes(self) -> int:
        """How many processes have models: those of the pool, or this one for all its threads."""
        return self._slots.model_processes

    def ages(self, now: float) -> dict[str, float]:
        """Return by task how many seconds the request has waited here that waits longest."""
        scheduler = list(self._scheduler.items())
        with self._slots.lock:  # likewise
            return {
                name: max(now - task_queue.waiting_since, 0.0) for name, task_queue in scheduler
            }

    def idle(self, now: float) -> float:
        """
        Return for how many seconds processes had no batch in their models, together.

        Args:
            now: On the monotonic clock.
        """
        busy, alive = self.busy(), self._slots.pids
        return self.watch.ask(lambda meter: meter.idle(now, busy, alive))

    def busy(self) -> dict[int, float]:
        """Return which processes have a batch now, and since when."""
        jobs = list(self._jobs)
        known = [(job.began, job.pid) for job in jobs if job.began is not None and job.pid]
        # Of several on threads of one process, the first has had it busy for longest.
        return {pid: began for began, pid in sorted(known, reverse=True)}

    def before_submit(self) -> None:
        """Have a batch that waited for its process leave out what others have taken."""
        self.running_messages.drop_lost()

    def on_start(self, job: BatchJob) -> None:
        """A pool process has taken a batch."""
        self._mark_running(job.requests)
        self._write_ahead.accepted(job)

    def _mark_running(self, requests: list[Any]) -> None:
        self.running_messages.started(requests)

    def on_end(self, job: BatchJob, ending: Ending) -> None:
        """A batch has ended: its slot is free, and its requests have something to hear."""
        self._leave(job)
        self._write_ahead.go_on()
        self.watch.ended(job, ending)
        if job.accepted:
            self._learn(job, ending)
        self.task_queue(job.task).ended(job)
        ending.news += self._run_again(job.task, ending)
        if self._slots.run_inline or self._hub is None or not self._open:
            self._completion.tell_at_once(ending)
            if not self._slots.run_inline:  # else it was pump that ran the batch, and goes on
                self.pump()
            return
        # Bookkeeping comes last: a batch that is ready now, or can be read now,
        # must not wait for the one that is done.
        self._completion.tell_after(self.pump, ending)

    def _learn(self, job: BatchJob, ending: Ending) -> None:
        self.task_queue(job.task).learn(job.answer)
        for request, reason in ending.refused:
            if not request.is_done:  # revoked while it ran: its end has been announced
                self._refuse(request, reason)
        for request, error in ending.poison:
            self._poison.add(request)
            request.before_end = partial(self._keep_dead_letter, request, error)
        if job.answer is not None and job.answer.broken:
            self._slots.recycle(job.pid, job.answer.broken)

    def _keep_dead_letter(
        self, request: Any, error: Exception, acknowledge: Callable[[], object]
    ) -> None:
        """Keep a copy of a poisonous request, whose end has been told, before it is let go of."""

        def let_go() -> None:
            self._poison.discard(request)
            acknowledge()
            self._redelivery.ended(request)

        self._prepared_messages.keep(request, error, let_go)

    def _run_again(self, task: Any, ending: Ending) -> list[Notification]:
        """Put requests back in line; return what is left to tell those that cannot run again."""
        task_queue, news = self.task_queue(task), []
        again = [(request, True) for request in ending.alone]
        again += [(request, False) for request in ending.again]
        for request, alone in again:
            if self._open and not request.is_disowned:
                self._receiver.line_up(task_queue, request, alone=alone)
            elif request.acknowledged:
                news += not_run(request).news
            else:  # its message is the broker's again, or will be
                task_ready(request)
                self._redelivery.never_ran([request])
        return news

    def _give_back(self, requests: list[Any]) -> None:
        """Leave who has not run to the broker, if it still has their messages."""
        self._redelivery.never_ran(each for each in requests if not each.acknowledged)
        for request in requests:
            if request.acknowledged:
                self._completion.tell(not_run(request).news)

    def _submit(self, task_queue: TaskQueue, batch: Batch[Any]) -> None:
        job = BatchJob(task_queue.task, batch, self)
        job.most = job.room = task_queue.policy.max_batch_size
        job.is_lone = not self._jobs and all(
            task_queue.is_empty for task_queue in self._scheduler.values()
        )
        self._priority.note(task_queue, job, self._scheduler.values())
        for each in list(self._jobs):  # pools of threads tell of an end at any time
            if not each.accepted and job.urgency < each.urgency:
                self._priority.overtake(each, self.task_queue(each.task).policy.low_priority_share)
        self._jobs.add(job)
        self._write_ahead.submit(job)

    def _give_up_late_ones(self) -> None:
        for task_queue in self._scheduler.values():
            for request in task_queue.expire():
                self.watch.gave_up(request)
                self._completion.tell(give_up(request).news)

    def _run_untold(self, request: Any) -> None:
        """Run again whose end could not be stored: nobody may wait for ever."""
        if self._open and not request.is_disowned:
            task_reserved(request)
            request.deadline = None  # what is left is to tell it, and that takes its time
            self._receiver.line_up(self.task_queue(request.task), request)

    def _leave(self, job: BatchJob) -> None:
        with self._slots.lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._slots.in_flight -= 1
        self._write_ahead.left(job)
        self._priority.forget(job)

    def _ring(self, late: float) -> None:
        for task_queue in self._scheduler.values():
            if late > task_queue.policy.linger_seconds:
                task_queue.restart_linger()
        self.pump()
