"""Gives each request of a batch its output, or another run."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from celery_batch.batching.isolation import Verdict, after_loss
from celery_batch.batching.request import Request
from celery_batch.errors import ModelError, PoisonItem
from celery_batch.runtime.runner import Outcome
from celery_batch.streamer.futures import Answer, fail, settle
from celery_batch.streamer.request_queue import RequestQueue, Requests

__all__ = ["MAX_LOSSES", "break_off", "broke_off", "give", "lose", "requeue_first"]

#: How often a process may die under a request, the last time alone, before it is given up.
MAX_LOSSES = 2


def give(request_queue: RequestQueue, requests: Requests, outputs: Sequence[Any]) -> None:
    """
    Settle a batch; requests whose run broke off go into the queue again, each alone.

    Args:
        request_queue: Where they came from.
        requests: Those of the batch.
        outputs: Of all their items, as `Runner.answers` returned them.
    """
    if Outcome in set(map(type, outputs)):
        _give_each(request_queue, requests, outputs)
    else:
        settle(requests, outputs, request_queue.answer_lock)
    request_queue.through(len(requests))


def _give_each(request_queue: RequestQueue, requests: Requests, outputs: Sequence[Any]) -> None:
    end = 0
    again: list[Request[Answer]] = []
    for request in requests:
        begin, end = end, end + request.rows
        part = outputs[begin:end]
        if any(type(each) is Outcome and each.again for each in part):
            again.append(request)
        else:
            settle([request], part, request_queue.answer_lock)
    request_queue.put_back([_alone(request, request_queue) for request in again])


def broke_off(name: str, error: BaseException) -> ModelError:
    """Return the error of a request whose run ended with what is no outcome of any request."""
    made = ModelError(f"{name} broke off: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def break_off(request_queue: RequestQueue, requests: Requests, error: ModelError) -> None:
    """Fail a request whose run broke off; run those of a larger batch again, each alone."""
    if len(requests) > 1:
        request_queue.put_back([_alone(request, request_queue) for request in requests])
    else:
        fail(requests, error, request_queue.answer_lock)
    request_queue.through(len(requests))


def lose(request_queue: RequestQueue, batches: Sequence[Requests]) -> None:
    """
    Run the requests of a process that died again, or fail those that it died under twice.

    Args:
        request_queue: Where they came from.
        batches: Those it had; the first one ran, the others waited behind it.
    """
    for requests in batches[:1]:
        was_alone = len(requests) == 1
        for request in requests:
            losses = MAX_LOSSES if request.alone else 1
            if after_loss(losses, was_alone=was_alone, max_losses=MAX_LOSSES) is Verdict.POISON:
                error = PoisonItem("the worker process died under the request, twice")
                fail([request], error, request_queue.answer_lock)
            else:
                request_queue.put_back([_alone(request, request_queue)])
        request_queue.through(len(requests))
    for requests in batches[1:]:
        requeue_first(request_queue, requests)


def requeue_first(request_queue: RequestQueue, requests: Requests) -> None:
    """Put a batch that never ran into the queue again, before all others."""
    request_queue.put_back([request._replace(urgency=-1) for request in requests])
    request_queue.through(len(requests))


def _alone(request: Request[Answer], request_queue: RequestQueue) -> Request[Answer]:
    timeout = request_queue.answer_lock.timeout
    # Not from its arrival: it may have waited long before, in a long queue.
    deadline = None if timeout is None else monotonic() + timeout
    return request._replace(alone=True, deadline=deadline)
