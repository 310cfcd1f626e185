"""Explains each proposed setting in a sentence or two."""

from __future__ import annotations

from math import ceil

from celery_batch.formatting import figure, number
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.propose import MOST_MESSAGES, NEARLY_ALL, Proposal, Trial, limit_of

__all__ = [
    "about_cost",
    "about_messages",
    "about_scatter",
    "about_size",
    "about_target",
    "about_wait",
]

#: A larger ratio of slow to usual runs is worth a note.
_STEADY = 1.5


def about_scatter(curve: Curve) -> str:
    """Warn if the times vary too much."""
    if curve.scatter < _STEADY:
        return ""
    return (
        f"The times scatter: one run in 20 takes {number(curve.scatter)} times as long as usual or"
        f" longer. Something else may be at work on this machine; measure again when it is idle."
    )


def about_cost(curve: Curve) -> str:
    """Say how the times depend on the cost, where that is limited."""
    line = curve.line
    if line is None:
        return ""
    return (
        f"A batch takes {figure(line.a)} and {figure(line.b)} for each unit of its cost, with its"
        f" padding; measured up to a cost of {number(line.highest)}."
    )


def about_size(curve: Curve, proposal: Proposal) -> str:
    """Explain the size."""
    chosen = proposal.chosen
    size, smallest = limit_of(chosen.policy), proposal.sizes[0]
    is_one = smallest.policy.max_batch_size == 1
    otherwise = "one by one" if is_one else f"with up to {limit_of(smallest.policy)}"
    compared = f"; {otherwise} it would be {number(smallest.max_rate)}"
    words = [
        f"With up to {size} in a batch one process completes {number(chosen.max_rate)} requests a"
        f" second within {figure(proposal.latency)}{compared if chosen is not smallest else ''}."
        if chosen.max_rate
        else f"Of the sizes measured, {size} comes nearest."
    ]
    limit = chosen.policy.max_batch_work
    larger = [trial for trial in proposal.sizes if trial.policy.max_batch_work > limit]
    if larger:
        words.append(_against(larger, chosen))
    elif curve.cap:
        words.append(f"It was not measured further: {curve.cap}.")
    return " ".join(words)


def about_messages(proposal: Proposal) -> str:
    """Note if the model is faster than any worker's messages."""
    if proposal.chosen.max_rate <= MOST_MESSAGES:
        return ""
    return (
        f"That is the model alone: a worker reads, stores and acknowledges some thousands of"
        f" messages a second, {number(MOST_MESSAGES)} at the very most. Chunks have many rows in a"
        f" message."
    )


def _against(larger: list[Trial], chosen: Trial) -> str:
    best = max(larger, key=lambda trial: trial.max_rate)
    amount = limit_of(best.policy)
    if best.max_rate <= chosen.max_rate:
        return f"With up to {amount} it would be {number(best.max_rate)}."
    return f"Up to {amount} would add little: {number(best.max_rate)}."


def about_wait(curve: Curve, proposal: Proposal) -> str:
    """Explain the waits, and the longest time under load."""
    policy = proposal.chosen.policy
    wait = f"waits {figure(policy.linger_seconds)} at most" if policy.max_wait else "does not wait"
    if policy.linger is None and policy.max_wait:
        wait += ", and not at all after a batch of one"
    full = curve.full(policy)
    return (
        f"A request to an idle process {wait}, beside the {figure(curve.seconds(1))} that it takes"
        f" itself.{_against_defaults(proposal)} Under load no request waits for others: one that"
        f" has just missed a full batch waits for that one and runs in the next, which ends after"
        f" {figure(2 * full)}."
    )


def _against_defaults(proposal: Proposal) -> str:
    chosen = proposal.chosen
    default = next(
        each for each in proposal.sizes if limit_of(each.policy) == limit_of(chosen.policy)
    )
    if default.policy == chosen.policy:
        return ""
    latency = figure(default.forecast.p99)
    return f" With the default waits 99 of 100 would have their results within {latency}."


def about_target(curve: Curve, proposal: Proposal) -> str:
    """Describe the forecast, and what would help if the target is missed."""
    chosen = proposal.chosen
    rate = proposal.rate
    forecast = chosen.forecast
    if chosen.meets:
        return (
            f"At {number(rate)} requests a second: half of them within {figure(forecast.p50)}, 99"
            f" of 100 within {figure(forecast.p99)}, in batches of {number(forecast.batch_size)} on"
            f" average, the model busy for {forecast.busy:.0%} of the time."
        )
    if rate < chosen.capacity:
        outcome = f"With these settings 99 of 100 have their results within {figure(forecast.p99)}."
    else:
        outcome = "With one process the queue grows without end."
    return f"No settings that were tried meet it. {_remedy(curve, proposal)} {outcome}"


def _remedy(curve: Curve, proposal: Proposal) -> str:
    chosen, latency = proposal.chosen, figure(proposal.latency)
    if 0 < chosen.max_rate < proposal.rate:
        processes = ceil(proposal.rate / chosen.max_rate)
        return (
            f"{number(proposal.rate)} requests a second need {processes} processes, each on its"
            f" own device: one completes {number(chosen.max_rate)} a second within {latency}."
        )
    alone = curve.seconds(1, NEARLY_ALL) + curve.overhead
    if alone > proposal.latency:
        return (
            f"A batch of one takes {figure(alone)} with sending: a faster model or device is"
            f" needed, or a longer target."
        )
    return f"It needs a faster model or device, or a target of {figure(2 * alone)} or more."
