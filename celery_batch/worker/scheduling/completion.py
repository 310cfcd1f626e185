"""Completes the requests of batches that have ended: notifies them, or has them run again."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from celery import signals
from celery.worker.state import task_ready, task_reserved

from celery_batch.compat.celery import context_of
from celery_batch.errors import QueueFull
from celery_batch.worker.dispatch.follow_up import (
    DONE,
    FollowUp,
    HandlerCall,
    error_info,
    not_run,
)
from celery_batch.worker.intake.dead_letters import DeadLetters
from celery_batch.worker.redis.result_backend import storing_results
from celery_batch.worker.scheduling.redelivery import RedeliveryCache

__all__ = ["Completion"]

logger = logging.getLogger(__name__)

#: Requests completed in one pass of the event loop, in which no message is read and no batch
#: is submitted; a routine success costs a twentieth of the others.
_NOTIFICATIONS_PER_PASS, _SUCCESSES_PER_PASS = 16, 256

#: Most times the target latency after which a refused call is to be tried again.
_LONGEST_RETRY = 10


class Completion:
    """Carries out what follows a batch, at once or a few requests in each pass of the loop."""

    def __init__(
        self,
        consumer: Any,
        redelivery: RedeliveryCache,
        refuse: Callable[[Any, str], object],
        enqueue: Callable[[Any], bool],
    ) -> None:
        self._hub = consumer.hub
        self._redelivery = redelivery
        self._refuse = refuse
        self._enqueue = enqueue
        self._dead_letters = DeadLetters(consumer)
        #: Requests whose messages are acknowledged once their dead letters are written.
        self._poison: set[Any] = set()
        self._handler_calls: deque[HandlerCall] = deque()
        self._succeeded: deque[Any] = deque()
        #: Requests that are refused with the next pass of the event loop, and their errors.
        self._late: list[tuple[Any, QueueFull]] = []

    def _note_ended(self, requests: Sequence[Any]) -> None:
        self._redelivery.add_ended(requests)
        for request in requests:
            if request.payload_key is not None:
                request.release_payload()

    def run_again(self, follow_up: FollowUp) -> None:
        """Queue requests again, and add the handler calls of those that cannot run again."""
        for request in follow_up.run_again:
            if self._enqueue(request):
                continue
            if request.acknowledged:
                follow_up.handler_calls += not_run(request)
            else:  # its message is the broker's again, or will be
                task_ready(request)
                self._redelivery.add_not_run([request])

    def reject_bad(self, follow_up: FollowUp) -> None:
        """Refuse requests with malformed bodies, and write dead letters of poisonous ones."""
        for request, reason in follow_up.refused:
            if not request.is_done:  # revoked while it ran: its end has been announced
                self._refuse(request, reason)
        for request, error in follow_up.poison:
            self._poison.add(request)
            request.before_end = partial(self._write_dead_letter, request, error)

    def _write_dead_letter(
        self, request: Any, error: Exception, acknowledge: Callable[[], object]
    ) -> None:
        """Write a copy of a poisonous request before it is acknowledged."""
        if self._dead_letters.are_kept:
            request.payload_key = None  # what is stored beside its message is for the copy

        def then() -> None:
            self._poison.discard(request)
            acknowledge()
            self._note_ended([request])

        self._dead_letters.write(request, error, then)

    def fail_not_run(self, requests: Iterable[Any]) -> None:
        """Leave requests to the broker; fail those whose messages it has no longer."""
        acknowledged = [request for request in requests if request.acknowledged]
        self._redelivery.add_not_run(each for each in requests if not each.acknowledged)
        for request in acknowledged:
            self.notify(not_run(request))

    def notify(self, handler_calls: Iterable[HandlerCall]) -> None:
        """Call handlers now; an error of one does not affect the others."""
        for each in handler_calls:
            request = each.request
            if not each.call():
                self._run_to_notify(request)
            elif request.acknowledged:  # else Celery has stopped it, and it comes again and runs
                self._note_ended([request])

    def _run_to_notify(self, request: Any) -> None:
        """Run a request again whose end could not be stored: its caller must get an answer."""
        request.is_suspect = request.is_redelivery_suspect = False
        request.deadline = None  # only its end is missing, and storing that takes time
        task_reserved(request)
        if not self._enqueue(request):
            task_ready(request)

    def refuse(self, request: Any, late: float, target: float) -> None:
        """Refuse a request whose result would come so many seconds after its target latency."""
        seconds = min(max(late, target), _LONGEST_RETRY * target)
        error = QueueFull(
            f"{request.name}: the result would come {late:.2g} s later than target_latency;"
            f" try again in {seconds:.2g} s",
            retry_after=seconds,
        )
        self._late.append((request, error))
        if self._hub is None:
            self._refuse_late()
        elif len(self._late) == 1:
            self._hub.call_soon(self._refuse_late)

    def _refuse_late(self) -> None:
        """Store all refusals in one write, and acknowledge their requests."""
        late, self._late = self._late, []
        for task, group in groupby(late, lambda each: each[0].task):
            refusals = list(group)
            try:
                _store_refusals(task, refusals)
            except Exception:
                logger.exception("Could not refuse %d requests at once: one by one", len(refusals))
                for request, error in refusals:
                    self.notify([HandlerCall(request, request.on_failure, (error_info(error),))])
            else:
                logger.info(
                    "Refused %d requests of %s that would be late", len(refusals), task.name
                )
                self._note_ended([request for request, _ in refusals])
                for request, error in refusals:
                    _end_refused(request, error)

    def complete(self, follow_up: FollowUp) -> None:
        """Notify all requests of a batch now."""
        self._succeed(follow_up.succeeded)
        self.notify(follow_up.handler_calls)

    def complete_after(self, first: Callable[[], object], follow_up: FollowUp) -> None:
        """Have the event loop call `first`, then notify the requests of a batch a few at a time."""
        self._handler_calls.extend(follow_up.handler_calls)
        self._succeeded.extend(follow_up.succeeded)
        self._hub.call_soon(self._begin, first)

    def close(self, *, restarting: bool) -> None:
        """Notify all requests that are left; none can be acknowledged if the connection is lost."""
        if restarting:
            calling = [each.request for each in self._handler_calls]
            late = [request for request, _ in self._late]
            for request in [*self._poison, *self._succeeded, *calling, *late]:
                request.disown()
        self._refuse_late()
        while self._handler_calls or self._succeeded:
            self._notify_some()
        if restarting:  # their messages may come again before the dead letters are written
            self._note_ended(list(self._poison))
        else:
            self._dead_letters.close()

    def _begin(self, first: Callable[[], object]) -> None:
        first()
        self._hub.call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._notify_some()
        if self._handler_calls or self._succeeded:
            self._hub.call_soon(self._next_pass)

    def _notify_some(self) -> None:
        self._succeed(_popped(self._succeeded, _SUCCESSES_PER_PASS))
        self.notify(_popped(self._handler_calls, _NOTIFICATIONS_PER_PASS))

    def _succeed(self, requests: list[Any]) -> None:
        wanted = [request for request in requests if not request.is_done]  # revoked as it ran
        try:
            _finish(wanted)
        except Exception:
            logger.exception("Could not finish %d requests at once: one by one", len(wanted))
            self.notify(HandlerCall(request, request.on_success, (DONE,)) for request in wanted)
        else:
            self._note_ended(requests)


def _store_refusals(task: Any, refusals: list[tuple[Any, QueueFull]]) -> None:
    """Store the errors of refused requests in one write."""
    with storing_results(task):
        for request, error in refusals:
            task.backend.mark_as_failure(
                request.id,
                error,
                request=context_of(request),
                store_result=request.store_errors,
            )


def _end_refused(request: Any, error: QueueFull) -> None:
    """Acknowledge a request whose error is stored, and announce that; an error is its own."""
    task_ready(request)
    try:
        request.acknowledge()
        if signals.task_failure.receivers:
            signals.task_failure.send(
                sender=request.task,
                task_id=request.id,
                exception=error,
                args=request.args,
                kwargs=request.kwargs,
                traceback=None,
                einfo=error_info(error),
            )
        request.send_event("task-failed", exception=repr(error), traceback=None)
    except Exception:
        logger.exception("Could not announce that %s was refused", request.id)


def _popped(items: deque[Any], most: int) -> list[Any]:
    return [items.popleft() for _ in range(min(most, len(items)))]


def _finish(requests: list[Any]) -> None:
    """Forget and acknowledge routine requests whose results are stored."""
    # Celery's list of successes is read by tracers of this process, and only with this setting.
    listed = bool(requests) and requests[0].app.conf.worker_deduplicate_successful_tasks
    for request in requests:
        task_ready(request, successful=listed)
        request.acknowledge()
