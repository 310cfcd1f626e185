"""Why there is no answer at the deadline: nobody to give it, or not in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webapp.errors import BrokerUnreachable, DeadlineExceeded, NoWorker, Refused
from webapp.readiness import LISTEN, Census, Probe

__all__ = ["listens", "why_late"]

#: Seconds after which it says something that no worker has been heard of.
_HEARD = 0.25

#: Of a short time, the share that is spent on listening to workers.
_SHARE = 0.8


def listens(within: float) -> float:
    """
    Return how long before its deadline a request asks which workers are there.

    Args:
        within: Seconds that it has in all.
    """
    return min(LISTEN, _SHARE * within)


def why_late(
    probe: Probe, earlier: Census | None, task: str, results: Sequence[Any], within: float
) -> Refused:
    """
    Return what a client is told whose answer has not come.

    Args:
        probe: The question to the workers, which may not have had time to be answered.
        earlier: What the last one has come to, unless that is too long ago.
        task: The name of the task that is waited for.
        results: Of all inputs.
        within: Seconds that the request had.
    """
    has_listened = probe.has_listened(_HEARD)
    census = probe.census()
    if has_listened and not census.reached:
        return BrokerUnreachable("the broker has stopped answering")
    # A worker that was warm a moment ago may take its time to say so again.
    is_settled = probe.has_ended or not census.cold([task]) or earlier is None
    known = census if has_listened and is_settled else earlier
    if known is not None and known.reached and known.cold([task]):
        return NoWorker(f"no worker with a warm model answers for {task}")
    missing = f"{sum(result.reply.value is None for result in results)} of {len(results)}"
    return DeadlineExceeded(f"{missing} inputs had no answer within {within:g} s")
