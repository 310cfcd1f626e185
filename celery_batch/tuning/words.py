"""Why, in a sentence or two for each setting."""

from __future__ import annotations

from math import ceil

from celery_batch.formatting import figure, number
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.propose import CARRIED, Proposal, Trial

__all__ = [
    "about_carrying",
    "about_scatter",
    "about_size",
    "about_target",
    "about_wait",
]

#: The share of runs that a target is about.
_NEARLY_ALL = 0.99

#: What slow runs may take of usual ones before somebody asks why.
_STEADY = 1.5


def about_scatter(curve: Curve) -> str:
    """Say that the times are not to be trusted, if they are not."""
    if curve.scatter < _STEADY:
        return ""
    return (
        f"The times scatter: one run in 20 takes {number(curve.scatter)} times as long as usual or"
        f" longer. Something else may be at work on this machine; better measure where it is quiet."
    )


def about_size(curve: Curve, proposal: Proposal) -> str:
    """Say why the batch may grow so large."""
    chosen = proposal.chosen
    size = chosen.policy.max_batch_size
    words = [
        f"With up to {size} in a batch one process answers {number(chosen.bears)} requests a"
        f" second within {figure(proposal.goal.latency)}; one by one it would be"
        f" {number(proposal.sizes[0].bears)}."
        if chosen.bears
        else f"Of the sizes measured, {size} comes nearest."
    ]
    larger = [trial for trial in proposal.sizes if trial.policy.max_batch_size > size]
    if larger:
        words.append(_against(larger, chosen))
    elif curve.cap:
        words.append(f"It was not measured further: {curve.cap}.")
    return " ".join(words)


def about_carrying(proposal: Proposal) -> str:
    """Say that the model is faster than any worker's messages, if it is."""
    if proposal.chosen.bears <= CARRIED:
        return ""
    return (
        f"That is the model alone: a worker reads, stores and acknowledges some thousands of"
        f" messages a second, {number(CARRIED)} at the very most. Chunks have many rows in a"
        f" message."
    )


def _against(larger: list[Trial], chosen: Trial) -> str:
    best = max(larger, key=lambda trial: trial.bears)
    amount = best.policy.max_batch_size
    if best.bears <= chosen.bears:
        return f"With up to {amount} it would be {number(best.bears)}."
    return f"Up to {amount} would add little: {number(best.bears)}."


def about_wait(curve: Curve, proposal: Proposal) -> str:
    """Say how long it waits for company and why, and what the worst is."""
    policy = proposal.chosen.policy
    wait = (
        "waits for nobody"
        if not policy.max_wait
        else f"waits {figure(policy.linger_seconds)} at most"
    )
    if policy.linger is None and policy.max_wait:
        wait += ", and after a batch of one for nobody"
    full = curve.seconds(policy.max_batch_size)
    return (
        f"A request to an idle process {wait}, beside the {figure(curve.seconds(1))} that it takes"
        f" itself.{_against_defaults(proposal)} In a crowd nobody waits for company: who has just"
        f" missed a full batch waits for that one and is answered with the next, after"
        f" {figure(2 * full)}."
    )


def _against_defaults(proposal: Proposal) -> str:
    chosen = proposal.chosen
    default = next(
        each
        for each in proposal.sizes
        if each.policy.max_batch_size == chosen.policy.max_batch_size
    )
    if default.policy == chosen.policy:
        return ""
    return f" With the default waits 99 of 100 would have theirs in {figure(default.forecast.p99)}."


def about_target(curve: Curve, proposal: Proposal) -> str:
    """Say what is expected, and where the target is missed what would help."""
    chosen = proposal.chosen
    rate = proposal.rate
    seen = chosen.forecast
    if chosen.meets:
        return (
            f"At {number(rate)} requests a second: half of them within {figure(seen.p50)}, 99 of"
            f" 100 within {figure(seen.p99)}, in batches of {number(seen.batch_size)} on"
            f" average, the model busy for {seen.busy:.0%} of the time."
        )
    if rate < curve.capacity(chosen.policy.max_batch_size):
        outcome = f"With these settings 99 of 100 have their answers within {figure(seen.p99)}."
    else:
        outcome = "With one process the others queue up ever longer."
    return f"Nothing tried meets it. {_remedy(curve, proposal)} {outcome}"


def _remedy(curve: Curve, proposal: Proposal) -> str:
    chosen, latency = proposal.chosen, figure(proposal.goal.latency)
    if 0 < chosen.bears < proposal.rate:
        processes = ceil(proposal.rate / chosen.bears)
        return (
            f"{number(proposal.rate)} requests a second want {processes} processes, each on a"
            f" device of its own: one answers {number(chosen.bears)} a second within {latency}."
        )
    alone = curve.seconds(1, _NEARLY_ALL) + curve.way
    if alone > proposal.goal.latency:
        return (
            f"A batch of one takes {figure(alone)} with its way: that wants a faster model or"
            f" device, or a longer target."
        )
    return f"It wants a faster model or device, or a target of {figure(2 * alone)} or more."
