"""Every batch task of a worker: who may use a slot next, and what follows a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery.worker import state
from celery.worker.state import task_ready, task_reserved

from celery_batch.batching.batch import Batch
from celery_batch.worker.ahead import Ahead
from celery_batch.worker.alarm import alarm_for
from celery_batch.worker.arrivals import Arrivals
from celery_batch.worker.dead_letters import DeadLetters
from celery_batch.worker.ending import Ending, give_up, not_run
from celery_batch.worker.job import BatchJob
from celery_batch.worker.lane import Lane
from celery_batch.worker.news import News
from celery_batch.worker.precedence import Precedence
from celery_batch.worker.returns import Returns
from celery_batch.worker.room import LEAST_URGENT, Room
from celery_batch.worker.slots import Slots
from celery_batch.worker.telling import Telling
from celery_batch.worker.watch import Watch

__all__ = ["Lanes"]


class Lanes:
    """
    The lanes of one consumer, which share its pool's slots.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._hub = consumer.hub
        self._slots = Slots(consumer.pool)
        self._ahead = Ahead(consumer)
        self._precedence = Precedence()
        self._lanes: dict[str, Lane] = {}
        self._jobs: set[BatchJob] = set()
        #: For newcomers.
        self.room = Room(self._lanes, self._jobs, self._slots)
        self._returns = Returns()
        self._letters = DeadLetters(consumer)
        #: Whose messages are acknowledged when their copies have been kept.
        self._poison: set[Any] = set()
        self._telling = Telling(consumer.hub, self._returns, self._run_untold)
        self._arrivals = Arrivals(consumer, self._returns)
        self._alarm = alarm_for(consumer.hub, self._ring)
        #: Told what each batch was.
        self.watch = Watch()
        self._open = False
        self._is_gathering = False

    def __repr__(self) -> str:
        return f"<Lanes {list(self._lanes.values())}, {self._slots.in_flight} in flight>"

    def lane(self, task: Any) -> Lane:
        """Return the lane of a batch task, made on first use."""
        if task.name not in self._lanes:
            self._lanes[task.name] = Lane(task, self._slots)
        return self._lanes[task.name]

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._lanes

    @property
    def is_open(self) -> bool:
        """Whether the event loop runs and batches may leave."""
        return self._open

    def has_room(self) -> bool:
        """Say whether there is room for anybody's message, whosever it is."""
        return any(self.room.left(self._lanes, [LEAST_URGENT]))

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
        self._alarm.cancel()
        self._ahead.close()
        if restarting:
            for request in self._poison:
                request.disown()
        self._telling.tell_rest(restarting=restarting)
        if restarting:
            for request in list(self._poison):  # which may come again before its copy is kept
                self._returns.ended(request)
        else:
            self._letters.close()
        for lane in self._lanes.values():
            self._give_back(lane.forget())
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
                self._returns.still_run(job)

    def resume(self, lane: Lane, by: object) -> None:
        """Let batches of a lane leave again that somebody has paused, if nobody else has, too."""
        for request, alone in lane.resume(by):
            self._arrivals.line_up(lane, request, alone=alone)
        self.pump()

    def end_running(self) -> None:
        """End the processes of batches that cannot be acknowledged any more, as others run them."""
        jobs = [job for job in list(self._jobs) if job.accepted and job.task.acks_late]
        self._slots.kill({job.pid for job in jobs if job.pid is not None})

    def hand_back(self, requests: list[Any]) -> None:
        """Give requests in no line back to the broker, over a connection that lives."""
        self._returns.never_ran(requests)
        self._consumer.batch_ledger.give_back(requests)
        for request in requests:
            task_ready(request)

    def drop(self, tags: set[str]) -> None:
        """Drop whatever no pool process has and that has one of these tags: others run it."""
        for lane in self._lanes.values():
            lane.drop(tags)
        for job in list(self._jobs):
            job.drop(tags)

    def add(self, lane: Lane, task_request: Any) -> None:
        """Put Celery's request in its lane, and send off what may leave."""
        if self._arrivals.admit(lane, task_request) and not self._is_gathering:
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
        self._consumer.batch_ledger.drop_lost()
        while self._open and not state.should_terminate:
            self._give_up_late_ones()
            soonest = [lane.next_deadline for lane in self._lanes.values()]
            lanes = self._precedence.order(self._lanes.values())
            contested = any(lane.is_full for lane in lanes)
            for lane in lanes:
                decision = lane.take(contested=contested, overtaken=self._overtaken_by(lane))
                if isinstance(decision, Batch):
                    self._submit(lane, decision)
                    break
                soonest.append(decision.seconds)
            else:
                seconds = min((each for each in soonest if each is not None), default=None)
                if seconds is not None:
                    self._alarm.set(seconds)
                return

    def _overtaken_by(self, lane: Lane) -> BatchJob | None:
        may = not self._slots.room_ahead and self._ahead.can_overtake(lane.task)
        return self._precedence.overtaken_by(lane, list(self._jobs)) if may else None

    def report(self) -> dict[str, Any]:
        """Return each lane's report by the task's name, with its batches that have not ended."""
        running = Counter(job.task.name for job in list(self._jobs))
        lanes = sorted(self._lanes.items())
        with self._slots.lock:  # whoever looks may be another thread
            return {name: {**lane.report(), "running": running[name]} for name, lane in lanes}

    @property
    def processes(self) -> int:
        """How many processes have models: those of the pool, or this one for all its threads."""
        return self._slots.model_processes

    def ages(self, now: float) -> dict[str, float]:
        """Return by task how many seconds the request has waited here that waits longest."""
        lanes = list(self._lanes.items())
        with self._slots.lock:  # likewise
            return {name: max(now - lane.waiting_since, 0.0) for name, lane in lanes}

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
        self._consumer.batch_ledger.drop_lost()

    def on_start(self, job: BatchJob) -> None:
        """A pool process has taken a batch."""
        self._consumer.batch_ledger.started(job.requests)
        self._ahead.accepted(job)

    def on_end(self, job: BatchJob, ending: Ending) -> None:
        """A batch has ended: its slot is free, and its requests have something to hear."""
        self._leave(job)
        self._ahead.go_on()
        self.watch.ended(job, ending)
        if job.accepted:
            self._learn(job, ending)
        self.lane(job.task).ended(job)
        ending.news += self._run_again(job.task, ending)
        if self._slots.run_inline or self._hub is None or not self._open:
            self._telling.tell_at_once(ending)
            if not self._slots.run_inline:  # else it was pump that ran the batch, and goes on
                self.pump()
            return
        # Bookkeeping comes last: a batch that is ready now, or can be read now,
        # must not wait for the one that is done.
        self._telling.tell_after(self.pump, ending)

    def _learn(self, job: BatchJob, ending: Ending) -> None:
        self.lane(job.task).learn(job.answer)
        for request, reason in ending.refused:
            if not request.is_done:  # revoked while it ran: its end has been announced
                self._consumer.batch_gate.refuse_read(request, reason)
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
            self._returns.ended(request)

        self._letters.keep(request, error, let_go)

    def _run_again(self, task: Any, ending: Ending) -> list[News]:
        """Put requests back in line; return what is left to tell those that cannot run again."""
        lane, news = self.lane(task), []
        again = [(request, True) for request in ending.alone]
        again += [(request, False) for request in ending.again]
        for request, alone in again:
            if self._open and not request.is_disowned:
                self._arrivals.line_up(lane, request, alone=alone)
            elif request.acknowledged:
                news += not_run(request).news
            else:  # its message is the broker's again, or will be
                task_ready(request)
                self._returns.never_ran([request])
        return news

    def _give_back(self, requests: list[Any]) -> None:
        """Leave who has not run to the broker, if it still has their messages."""
        self._returns.never_ran(each for each in requests if not each.acknowledged)
        for request in requests:
            if request.acknowledged:
                self._telling.tell(not_run(request).news)

    def _submit(self, lane: Lane, batch: Batch[Any]) -> None:
        job = BatchJob(lane.task, batch, self)
        job.most = job.room = lane.policy.max_batch_size
        job.is_lone = not self._jobs and all(lane.is_empty for lane in self._lanes.values())
        self._precedence.note(lane, job, self._lanes.values())
        for each in list(self._jobs):  # pools of threads tell of an end at any time
            if not each.accepted and job.urgency < each.urgency:
                self._precedence.overtake(each, self.lane(each.task).policy.bulk_share)
        self._jobs.add(job)
        self._ahead.submit(job)

    def _give_up_late_ones(self) -> None:
        for lane in self._lanes.values():
            for request in lane.expire():
                self.watch.gave_up(request)
                self._telling.tell(give_up(request).news)

    def _run_untold(self, request: Any) -> None:
        """Run again whose end could not be stored: nobody may wait for ever."""
        if self._open and not request.is_disowned:
            task_reserved(request)
            request.deadline = None  # what is left is to tell it, and that takes its time
            self._arrivals.line_up(self.lane(request.task), request)

    def _leave(self, job: BatchJob) -> None:
        with self._slots.lock:
            if job in self._jobs:
                self._jobs.remove(job)
                self._slots.in_flight -= 1
        self._ahead.left(job)
        self._precedence.forget(job)

    def _ring(self, late: float) -> None:
        for lane in self._lanes.values():
            if late > lane.policy.patience:
                lane.looked_away()
        self.pump()
