"""What a pool process knows of how each answer of a batch was made."""

from __future__ import annotations

from collections.abc import Sequence

from celery_batch.chunks import Chunk
from celery_batch.folding import Asked, rows_in
from celery_batch.replies import facts_of_all
from celery_batch.serving.runner import Timing
from celery_batch.worker.delivery import Delivery

__all__ = ["Facts", "facts_of"]

#: What is the same for all whom a model call has answered, as it is told, and one's own wait.
Facts = tuple[bytes, float]


def facts_of(
    timings: Sequence[Timing], asked: Sequence[Asked], deliveries: Sequence[Delivery]
) -> dict[str, Facts]:
    """
    Return by their ids what is known of the requests of one batch.

    Args:
        timings: Of all calls of the model, in their order.
        asked: What each request asks.
        deliveries: The same requests.

    Returns:
        For each request, as far as that is known, the last call that it was in.  Where
        its rows were in several: the rows of the largest, the seconds of all, and the
        wait for the first.
    """
    if not timings:
        return {}
    if len(timings) == 1:
        (only,) = timings
        alike, began = _alike(only, deliveries[0]), only.began
        return {
            each.task_id: (alike, max(began - each.arrived, 0.0))
            for each in deliveries
            if each.arrived is not None
        }
    return _of_several(timings, asked, deliveries)


def _of_several(
    timings: Sequence[Timing], asked: Sequence[Asked], deliveries: Sequence[Delivery]
) -> dict[str, Facts]:
    last: list[Timing | None] = [None] * rows_in(asked)
    for timing in timings:
        last[timing.part.start : timing.part.stop] = [timing] * len(timing.part)
    facts: dict[str, Facts] = {}
    start = 0
    for each, delivery in zip(asked, deliveries, strict=True):
        end = start + (each.rows if isinstance(each, Chunk) else 1)
        calls = [call for call in dict.fromkeys(last[start:end]) if call is not None]
        start = end
        if calls and delivery.arrived is not None:
            whole = calls[0] if len(calls) == 1 else _together(calls)
            facts[delivery.task_id] = (
                _alike(whole, delivery),
                max(whole.began - delivery.arrived, 0.0),
            )
    return facts


def _together(calls: Sequence[Timing]) -> Timing:
    largest = max(calls, key=lambda call: len(call.part))
    return Timing(
        largest.part, min(call.began for call in calls), sum(call.seconds for call in calls)
    )


def _alike(timing: Timing, delivery: Delivery) -> bytes:
    return facts_of_all(
        len(timing.part), timing.seconds, str(delivery.request.get("hostname") or "")
    )
