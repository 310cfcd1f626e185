"""Runs batches of a streamer, and tells how long their calls took."""

from __future__ import annotations

from typing import Any

from celery_batch.runtime.runner import Collated, Counts, Runner, Timing

__all__ = ["CallTime", "timed_outputs"]

#: The cost of a call with its padding, and its seconds.
CallTime = tuple[float, float]


def timed_outputs(
    runner: Runner, items: list[Any], *, alone: bool, collated: Collated | None = None
) -> tuple[list[Any], CallTime | None]:
    """
    Run a batch.

    Args:
        runner: Of the model.
        items: Of all requests of the batch.
        alone: Whether they are of one request.
        collated: The first call, if that is collated already.

    Returns:
        The outputs, as `Runner.outputs` returns them; and of its calls the average, None where
        they have no cost, or some of them were made because others failed.
    """
    timings, counts = list[Timing](), Counts()
    outputs = runner.outputs(items, alone=alone, timings=timings, counts=counts, collated=collated)
    if not counts.padded_cost or counts.isolated or counts.out_of_memory:
        return outputs, None
    seconds = sum(each.seconds for each in timings)
    return outputs, (counts.padded_cost / counts.calls, seconds / counts.calls)
