"""What a batch's run gives each of its requests: an answer, or another run."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from celery_batch.batching.recovery import Verdict, after_loss
from celery_batch.batching.request import Request
from celery_batch.errors import ModelError, PoisonItem
from celery_batch.serving.runner import Outcome
from celery_batch.streamer.answer import Answer, fail, settle
from celery_batch.streamer.intake import Intake
from celery_batch.streamer.waiting import Requests

__all__ = ["MAX_LOSSES", "break_off", "give", "lose", "stand_first"]

#: How often a process may die under a request, the last time alone, before it is given up.
MAX_LOSSES = 2


def give(intake: Intake, requests: Requests, outputs: Sequence[Any]) -> None:
    """
    Settle a batch; requests whose run broke off go in line again, alone.

    Args:
        intake: Where they came from.
        requests: Those of the batch.
        outputs: Of all their items, as `Runner.answers` returned them.
    """
    if Outcome in set(map(type, outputs)):
        _give_each(intake, requests, outputs)
    else:
        settle(requests, outputs, intake.desk)
    intake.through(len(requests))


def _give_each(intake: Intake, requests: Requests, outputs: Sequence[Any]) -> None:
    end = 0
    again: list[Request[Answer]] = []
    for request in requests:
        begin, end = end, end + request.rows
        part = outputs[begin:end]
        if any(type(each) is Outcome and each.again for each in part):
            again.append(request)
        else:
            settle([request], part, intake.desk)
    intake.put_back([_alone(request, intake) for request in again])


def break_off(intake: Intake, requests: Requests, error: BaseException, name: str) -> None:
    """
    Judge those whose run ended with something that is nobody's outcome.

    Args:
        intake: Where they came from.
        requests: Those of the batch; who was alone is the reason, and the others run again alone.
        error: What the run ended with.
        name: What to call the model.
    """
    if len(requests) > 1:
        intake.put_back([_alone(request, intake) for request in requests])
    else:
        broke_off = ModelError(f"{name} broke off: {type(error).__name__}: {error}")
        broke_off.__cause__ = error
        fail(requests, broke_off, intake.desk)
    intake.through(len(requests))


def lose(intake: Intake, batches: Sequence[Requests]) -> None:
    """
    Judge those whose process died.

    Args:
        intake: Where they came from.
        batches: Those it had; the first one ran, the others lay ready.
    """
    for requests in batches[:1]:
        was_alone = len(requests) == 1
        for request in requests:
            losses = MAX_LOSSES if request.alone else 1
            if after_loss(losses, was_alone=was_alone, max_losses=MAX_LOSSES) is Verdict.POISON:
                error = PoisonItem("the worker process died under the request, twice")
                fail([request], error, intake.desk)
            else:
                intake.put_back([_alone(request, intake)])
    for requests in batches[1:]:
        stand_first(intake, requests)
    intake.through(len(batches[0]) if batches else 0)


def stand_first(intake: Intake, requests: Requests) -> None:
    """Put a batch that never ran in line again, before all others."""
    intake.put_back([request._replace(urgency=-1) for request in requests])
    intake.through(len(requests))


def _alone(request: Request[Answer], intake: Intake) -> Request[Answer]:
    patience = intake.desk.patience
    # Not from its arrival: it may have waited long before, in a long line.
    deadline = None if patience is None else monotonic() + patience
    return request._replace(alone=True, deadline=deadline)
