"""Calls the handlers of Celery's requests, for one request or for many.

Celery's handlers of a start and of a success count, forget, acknowledge, and send
events.  Where no event is wanted the rest is the same few steps for each request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

from celery.worker import request as celery_request
from celery.worker import state
from kombu.exceptions import EncodeError

from celery_batch.worker.intake.request import BatchRequest

__all__ = [
    "Notification",
    "accept",
    "is_routine",
    "succeed",
]


logger = logging.getLogger(__name__)


#: What is wrong with what is to be stored, and will be the next time.
_LASTING_ERRORS = (EncodeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Notification:
    """
    What one of Celery's requests has to hear.

    Args:
        request: Celery's request.
        tell: The handler of the request to call.
        facts: Its arguments.
    """

    request: Any
    tell: Callable[..., Any]
    facts: tuple[Any, ...]

    def deliver(self) -> bool:
        """
        Call the handler; whatever it raises, the others hear theirs.

        Returns:
            Whether the request has ended.  If its result cannot be stored now, it has
            not, and is to run again: nobody may wait for ever.
        """
        if self.request.is_done:  # revoked while it ran: its end has been announced
            return True
        try:
            with self.request.acknowledging_last():
                self.tell(*self.facts)
        except Exception as error:
            logger.exception("Could not settle %s[%s]", self.request.name, self.request.id)
            return self.request.acknowledged or self._fail(error)
        return True

    def _fail(self, error: Exception) -> bool:
        request = self.request
        try:
            if request.has_succeeded:  # and heard of it; only what came after went wrong
                request.acknowledge()
                return True
            try:
                request.task.backend.mark_as_failure(request.id, error, request=request._context)  # noqa: SLF001
            except _LASTING_ERRORS:
                logger.exception("No end of %s[%s] can be stored", request.name, request.id)
            request.acknowledge()
        except Exception as failure:  # noqa: BLE001 (what cannot be stored is computed again)
            logger.warning("%s[%s] runs again: %s", request.name, request.id, failure)
            return False
        return True


def is_routine(request: Any) -> bool:
    """Say whether nobody hears of a request's start and success but Celery's own books."""
    return isinstance(request, BatchRequest) and request.is_routine


def accept(requests: Sequence[Any], pid: int, began: float) -> list[Any]:
    """
    Tell requests that a pool process has taken them, where that is routine.

    Args:
        requests: Of one batch.
        pid: The process.
        began: When it took them, on the monotonic clock.

    Returns:
        Who is still to be told, by Celery's own handler.
    """
    if celery_request._does_debug:  # noqa: SLF001 (it logs a line for each)
        return list(requests)
    started = time() - (monotonic() - began)
    routine = [each for each in requests if is_routine(each) and not each.is_done]
    for request in routine:
        request.worker_pid, request.time_start = pid, started
        state.requests[request.id] = request
        state.active_requests.add(request)
        state.total_count[request.name] += 1
    state.all_total_count[0] += len(routine)
    if len(routine) == len(requests):
        return []
    told = set(routine)
    return [request for request in requests if request not in told]


def succeed(requests: Sequence[Any]) -> None:
    """Tell routine requests that their results are stored: they are forgotten and acknowledged."""
    # Celery's list of successes is read by tracers of this process, and only with this setting.
    listed = bool(requests) and requests[0].app.conf.worker_deduplicate_successful_tasks
    for request in requests:
        state.task_ready(request, successful=listed)
        request.acknowledge()
