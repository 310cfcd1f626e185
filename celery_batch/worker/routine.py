"""
What every request hears, told to many at once where nobody else is to hear of it.

Celery's handlers of a start and of a success count, forget, acknowledge, and send
events.  Where no event is wanted the rest is the same few steps for each request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic, time
from typing import Any

from celery.worker import request as celery_request
from celery.worker import state

from celery_batch.worker.request import BatchRequest

__all__ = ["accept", "is_routine", "succeed"]


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


def succeed(requests: Iterable[Any]) -> None:
    """Tell routine requests that their results are stored: they are forgotten and acknowledged."""
    for request in requests:
        state.task_ready(request, successful=True)
        request.acknowledge()
