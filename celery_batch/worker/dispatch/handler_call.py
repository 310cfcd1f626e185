"""Calls the handlers of Celery's requests, for one request or for many.

Celery's handlers of a start and of a success update its counters, forget the request, acknowledge
it and send events.  Where no event is wanted, the rest is the same few steps for each request.
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

__all__ = ["HandlerCall", "accept", "is_routine", "succeed"]

logger = logging.getLogger(__name__)

#: Errors of a value that cannot be stored, now or later.
_LASTING_ERRORS = (EncodeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """
    A call of one handler of Celery's request.

    Args:
        request: Celery's request.
        handler: The handler.
        arguments: Its arguments.
    """

    request: Any
    handler: Callable[..., Any]
    arguments: tuple[Any, ...]

    def call(self) -> bool:
        """
        Call the handler, and log what it raises.

        Returns:
            Whether the request has ended.  If its result cannot be stored now, it
            has not, and must run again, so that its caller gets an answer.
        """
        if self.request.is_done:  # revoked while it ran: its end has been announced
            return True
        try:
            with self.request.acknowledging_last():
                self.handler(*self.arguments)
        except Exception as error:
            logger.exception("Could not finish %s[%s]", self.request.name, self.request.id)
            return self.request.acknowledged or self._fail(error)
        return True

    def _fail(self, error: Exception) -> bool:
        request = self.request
        try:
            if not request.has_succeeded:  # else only what follows a success has failed
                try:
                    context = request._context  # noqa: SLF001
                    request.task.backend.mark_as_failure(request.id, error, request=context)
                except _LASTING_ERRORS:
                    logger.exception("No end of %s[%s] can be stored", request.name, request.id)
            request.acknowledge()
        except Exception as failure:  # noqa: BLE001 (what cannot be stored is computed again)
            logger.warning("%s[%s] runs again: %s", request.name, request.id, failure)
            return False
        return True


def is_routine(request: Any) -> bool:
    """Return whether a request's start and success only change Celery's own records."""
    return isinstance(request, BatchRequest) and request.is_routine


def accept(requests: Sequence[Any], pid: int, began: float) -> list[Any]:
    """
    Mark the routine requests of a batch as accepted by a pool process.

    Args:
        requests: The requests of the batch.
        pid: The process.
        began: When it accepted them, on the monotonic clock.

    Returns:
        The other requests, which need Celery's own handler.
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
    accepted = set(routine)
    return [request for request in requests if request not in accepted]


def succeed(requests: Sequence[Any]) -> None:
    """Forget and acknowledge routine requests whose results are stored."""
    # Celery's list of successes is read by tracers of this process, and only with this setting.
    listed = bool(requests) and requests[0].app.conf.worker_deduplicate_successful_tasks
    for request in requests:
        state.task_ready(request, successful=listed)
        request.acknowledge()
