"""A pool job for one batch, and its callbacks for every request."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import compress
from typing import Any
from uuid import uuid4
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.state import task_ready

from celery_batch.batching.batch import Batch
from celery_batch.batching.policy import BatchPolicy
from celery_batch.compat.billiard import PoolPipe, is_in_pool
from celery_batch.compat.celery import does_debug, note_pool_result
from celery_batch.errors import BatchError
from celery_batch.worker.dispatch.follow_up import (
    BatchEnd,
    FollowUp,
    HandlerCall,
    after_answer,
    after_failure,
    error_info,
    unwrapped,
)
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.executor import run_batch
from celery_batch.worker.intake.request import wants_events

__all__ = ["BatchJob", "is_revoked"]

logger = logging.getLogger(__name__)

#: Seconds from the soft limit to the hard limit where both would strike at once.
_AFTER_SOFT = 0.5


class BatchJob:
    """What Celery's worker hands to the pool in place of a single request."""

    def __init__(self, task: Any, batch: Batch[Any], scheduler: Any, policy: BatchPolicy) -> None:
        self.id = str(uuid4())
        self.task = task
        self._reuse = policy.dedupe, policy.cache_ttl  # as in `BatchPayload`
        self.requests: list[Any] = batch.items
        self.rows = batch.rows
        #: How much of a batch its requests take, in rows or in cost.
        self.work = self._work()
        self.max_rows = policy.max_batch_size
        self.cost_limits = policy.cost_limits
        #: Of its most urgent request; a smaller number goes first.
        self.urgency = batch.urgency
        #: When it starts in the virtual time in which the tasks of a worker share its device.
        self.start = 0.0
        self.reason, self.key, self.plan = batch.reason, batch.key, batch.plan
        self.earned_part, self.is_suspect = batch.earned_part, batch.is_suspect
        #: Whether no other request runs or waits; set before it is submitted.
        self.is_only_batch = False
        #: The jobs that are in its process with it, or were when the process died.
        self.neighbours: set[BatchJob] = set()
        self.submitted = False
        #: Whether its payload is made, of which no request can be dropped any more.
        self._is_leaving = False
        self._result: Any = lambda: None
        #: When a pool process accepted it, on the monotonic clock, and which.
        self.began: float | None = None
        self.pid: int | None = None
        #: What the pool process has returned, or the error that the pool reported instead.
        self.answer: BatchEnd | None = None
        self.error: Any = None
        #: Whether the start of its requests was announced.
        self._is_announced = False
        #: The payload until a thread takes it, if the models run in this process.
        self._own_payload: BatchPayload | None = None
        self._scheduler = scheduler
        #: Whether it has left its slot.
        self.has_ended = False
        #: Guards the end and the requests: pools may report on threads, and a signal handler
        #: may run on top of us.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def batches(self) -> float:
        """How many whole batches its rows are, at least one; a large chunk is several."""
        return max(self.rows / self.max_rows, 1.0)

    @property
    def precedence(self) -> tuple[int, float]:
        """What decides which of two batches that are ready runs first: the smaller goes first."""
        return self.urgency, self.start

    @property
    def accepted(self) -> bool:
        """Whether a pool process has accepted it."""
        return self.began is not None

    @property
    def is_in_pool(self) -> bool:
        """Whether the pool will still report its end."""
        result = self._result()
        return result is not None and is_in_pool(result)

    def runs_in(self, pipe: PoolPipe) -> bool:
        """Return whether the pool's process has accepted it and still runs it."""
        has_left = self.has_ended or not self.is_in_pool or pipe.is_ending(self._result())
        return self.accepted and not has_left

    def execute_using_pool(self, pool: Any, **_: Any) -> Any:
        """Submit the requests that are still to run; raise TaskRevokedError if none is."""
        if self.has_ended:
            raise TaskRevokedError(self.id)
        self._scheduler.running_messages.drop_taken_over()  # which calls `drop`
        with self._lock:  # another thread may be in `drop`
            self._is_leaving = True
        self._keep([not is_revoked(request) for request in self.requests])
        if not self.requests:
            self._end_without_run()
            raise TaskRevokedError(self.id)
        try:
            result = self._submit(pool)
        except Exception as error:
            if state.should_terminate or state.should_stop is not None:
                self._end_without_run()  # a pool of threads that is closing raises this
            else:
                logger.exception("Could not send a batch of %s to the pool", self.task.name)
                self._on_failure(error_info(error))
            raise TaskRevokedError(self.id) from error
        self._set_result(result)
        return result

    def _keep(self, wanted: list[bool]) -> None:
        """Drop the other requests."""
        if all(wanted):  # as nearly always
            return
        self.requests = list(compress(self.requests, wanted))
        self.rows = sum(request.rows for request in self._distinct())
        self.work = self._work()

    def _work(self) -> float:
        return math.fsum(request.work for request in self._distinct())

    def _distinct(self) -> Collection[Any]:
        """Return its requests, of equal ones the last: they run in one row."""
        shares_rows, _ = self._reuse
        if not shares_rows:
            return self.requests
        return {request.row_digest or request.id: request for request in self.requests}.values()

    def _submit(self, pool: Any) -> Any:
        _apply_worker_limits(pool, self.task, self.requests)
        others_wait = self._scheduler.task_queue(self.task).next_deadline is not None
        soft, hard = _tightest_limits(self.task, self.requests, shares_time=others_wait)
        payload = self._payload()
        if not isinstance(pool, PreforkPool):  # else a copy has gone to a process
            self._own_payload = payload
        return pool.apply_async(
            run_batch,
            (self.task.name, payload, soft),
            accept_callback=self._on_accepted,
            callback=self._on_success,
            error_callback=self._on_failure,
            timeout_callback=self._on_timeout,
            soft_timeout=soft,
            timeout=hard,
            correlation_id=self.id,
        )

    def _payload(self) -> BatchPayload:
        first = self.requests[0]  # as all of them, one task's of one consumer
        return BatchPayload(
            map(_delivery, self.requests),
            most=self.max_rows,
            cost_limits=self.cost_limits,
            precedence=self.precedence,
            reason=str(self.reason),
            plan=None if self.plan is None else self.plan.facts,
            has_watchers=wants_events(first.eventer, first.task),
            is_lone=self.is_only_batch,
            reuse=self._reuse,
        )

    def _set_result(self, result: Any) -> None:
        if result is not None:
            self.submitted = True
            self._result = ref(result)
            note_pool_result(self.requests, result)
        elif not self.accepted:
            # A pool that is closing returns None; unacknowledged, the messages go
            # back to the broker with the connection.
            # (The solo pool returns None as well, but after it has run the batch.)
            self._end_without_run()

    def forget(self) -> None:
        """Give up requests that will not run here: their messages went back to the broker."""
        self.has_ended = True
        for request in self.requests:
            task_ready(request)

    def drop(self, tags: set[str]) -> None:
        """Drop requests with these delivery tags, unless the pool gets them: others run them."""
        with self._lock:
            if self._is_leaving or self.has_ended:
                return
            requests = self.requests
            wanted = [each.message.delivery_tag not in tags for each in requests]
            self._keep(wanted)
        for request, is_wanted in zip(requests, wanted, strict=True):
            if not is_wanted:
                task_ready(request)

    def disown(self) -> None:
        """Let the batch finish, but never acknowledge on a lost connection."""
        for request in self.requests:
            request.disown()

    def adopt(self, task_request: Any) -> bool:
        """Put a request that was delivered again in its former place, unless the job has ended."""
        with self._lock:
            keys = [request.key for request in self.requests]
            if self.has_ended or task_request.key not in keys:
                return False
            index = keys.index(task_request.key)
            former, self.requests[index] = self.requests[index], task_request
            task_request.take_place_of(former)
            is_announced = self._is_announced
        task_ready(former)
        if is_announced:
            HandlerCall(task_request, task_request.on_accepted, (self.pid, self.began)).call()
        return True

    def _on_accepted(
        self,
        pid: int,
        time_accepted: float,
        *,
        is_read_ahead: bool = False,  # whether requests were read before, on a thread
    ) -> Callable[[], None] | None:
        """Note the start; return what announces it, if that may wait until the model runs."""
        if self.has_ended:
            return None
        payload, self._own_payload = self._own_payload, None
        if payload is not None:
            self._leave_out_revoked(payload, is_read_ahead=is_read_ahead)
        self.pid, self.began = pid, time_accepted
        self._scheduler.on_start(self)
        announce = partial(self._announce_start, pid, time_accepted)
        # Celery acknowledges early as it announces the start: before the model runs.
        if is_read_ahead and self.task.acks_late:
            return announce
        announce()
        return None

    def _leave_out_revoked(self, payload: BatchPayload, *, is_read_ahead: bool) -> None:
        """Leave out requests that were revoked or expired while the batch waited; announce it."""
        with self._lock:
            wanted = [not is_revoked(request) for request in self.requests]
            if is_read_ahead:  # the model's call leaves them out; the pool returns them
                payload.revoked = {each.id for each in self.requests if each.is_done}
                return
            self._keep(wanted)
            payload[:] = list(compress(payload, wanted))

    def _announce_start(self, pid: int, began: float) -> None:
        """Have each request that runs handle its start."""
        with self._lock:
            self._is_announced = True
            wanted = [request for request in self.requests if not request.is_done]
            special = _accept(wanted, pid, began)
        for request in special:
            HandlerCall(request, request.on_accepted, (pid, began)).call()

    def _on_success(self, answer: BatchEnd | ExceptionInfo, **_: Any) -> None:
        if isinstance(answer, ExceptionInfo):  # solo and threads report an exit of the model so
            self._on_failure(answer)
            return
        requests = self._close()
        if requests is None:
            return
        began, found, asked = self.began or time.monotonic(), len(answer.results), len(requests)
        if found == asked:
            self.answer = answer
            follow_up = after_answer(requests, answer, began=began)
        else:  # a fault, and each caller gets an answer
            self.error = BatchError(
                f"the pool process returned {found} results for {asked} requests"
            )
            einfo = error_info(self.error)
            follow_up = after_failure(self.task, requests, einfo, began=began, was_alone=False)
        self._scheduler.on_end(self, follow_up)

    def _on_failure(self, einfo: Any, **_: Any) -> None:
        requests = self._close()
        if requests is None:
            return
        self.error = unwrapped(einfo)
        follow_up = after_failure(
            self.task,
            requests,
            einfo,
            began=self.began,
            was_alone=len(requests) == 1 and not self.neighbours,
            load_seconds=self._scheduler.load_seconds,
        )
        self._scheduler.on_end(self, follow_up)

    def _on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 (the pool's signature)
        if soft:  # a hard one is reported as a failure
            for request in self.requests:
                HandlerCall(request, request.on_timeout, (soft, timeout)).call()

    def _close(self) -> list[Any] | None:
        """End the job, and return its requests; None if it had ended before."""
        with self._lock:
            if self.has_ended:
                return None
            self.has_ended = True
            return list(self.requests)

    def _end_without_run(self) -> None:
        """End the job; the messages of what is left in it go back to the broker."""
        if self._close() is not None:
            self._scheduler.on_end(self, FollowUp())


#: Guards Celery's counters, which batches of two threads may change at once.
_state_lock = threading.RLock()


def _accept(requests: Sequence[Any], pid: int, began: float) -> list[Any]:
    """Mark routine requests as accepted; return the others, which need Celery's own handler."""
    if does_debug():  # it logs a line for each
        return list(requests)
    started = time.time() - (time.monotonic() - began)
    routine = [each for each in requests if each.is_routine and not each.is_done]
    with _state_lock:
        for request in routine:
            request.worker_pid, request.time_start = pid, started
            state.requests[request.id] = request
            state.active_requests.add(request)
            state.total_count[request.name] += 1
        state.all_total_count[0] += len(routine)
    if len(routine) == len(requests):
        return []
    accepted = set(routine)
    return [request for request in requests if request not in accepted]


def is_revoked(request: Any) -> bool:
    """Return whether a request was revoked or has expired; its end is then announced."""
    try:
        return bool(request.revoked())
    except Exception:
        logger.exception("Could not revoke %s[%s], which runs", request.name, request.id)
        return False


def _delivery(request: Any) -> Delivery:
    # Arguments cross to the pool once, as the encoded body.
    fields = request.request_dict.copy()
    fields.pop("args", None)
    fields.pop("kwargs", None)
    return Delivery(
        request.id,
        fields,
        request.body,
        request.content_type,
        request.content_encoding,
        request.arrived,
        not request.is_undecoded,
    )


def _apply_worker_limits(pool: Any, task: Any, requests: Sequence[Any]) -> None:
    """Give the worker's own limits to requests that have none by their call or their task."""
    options = pool.options  # since 5.7 tasks have them if they are settings
    hard, soft = options.get("timeout"), options.get("soft_timeout")
    if hard or soft:
        for request in requests:
            of_call = request.time_limits
            request.time_limits = (
                of_call[0] or task.time_limit or hard,
                of_call[1] or task.soft_time_limit or soft,
            )


def _tightest_limits(
    task: Any, requests: Sequence[Any], *, shares_time: bool
) -> tuple[float | None, float | None]:
    """Return the soft and the hard limit of a batch, in seconds."""
    limits = [request.time_limits for request in requests]
    hards = [own or task.time_limit for own, _ in limits if own or task.time_limit]
    softs = [own or task.soft_time_limit for _, own in limits if own or task.soft_time_limit]
    # One that runs again alone has half of the time that is left, if others wait for the rest.
    deadlines = [request.deadline for request in requests if request.deadline is not None]
    if deadlines:
        left = min(deadlines) - time.monotonic()
        left = max(left / 2 if shares_time else left, 0.01)
        if hards:
            hards.append(left + (_AFTER_SOFT if softs else 0.0))
        if softs:
            softs.append(left)
    return min(softs, default=None), min(hards, default=None)
