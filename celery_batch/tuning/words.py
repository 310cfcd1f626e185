"""Why, in a sentence or two for each setting."""

from __future__ import annotations

from math import ceil

from celery_batch.tuning.curve import Curve
from celery_batch.tuning.propose import Proposal, Trial

__all__ = ["about_size", "about_target", "about_wait", "figure", "number"]


def number(amount: float) -> str:
    """Return an amount to three digits, as in 1,230 and 0.123."""
    digits = float(f"{amount:.3g}")
    return f"{digits:,.0f}" if digits >= 100 else f"{digits:g}"  # noqa: PLR2004 (three digits)


def figure(seconds: float) -> str:
    """Return seconds to three digits."""
    return f"{number(seconds)} s" if seconds >= 1e-4 else f"{seconds:.6f} s"  # noqa: PLR2004


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


def _against(larger: list[Trial], chosen: Trial) -> str:
    best = max(larger, key=lambda trial: trial.bears)
    amount = best.policy.max_batch_size
    if best.bears < chosen.bears:
        return f"With up to {amount} it would be {number(best.bears)}."
    return f"Up to {amount} adds little: {number(best.bears)}."


def about_wait(curve: Curve, proposal: Proposal) -> str:
    """Say why it waits for company so long, and what the worst is."""
    chosen = proposal.chosen
    policy = chosen.policy
    size = policy.max_batch_size
    full, alone = curve.seconds(size), curve.seconds(1)
    worst = 2 * full
    wait = "waits for nobody" if not policy.max_wait else f"waits {figure(policy.patience)} at most"
    if policy.linger is None and policy.max_wait:
        wait += ", and after a batch of one for nobody"
    return (
        f"A request to an idle process {wait}, beside the {figure(alone)} that it takes itself."
        f" In a crowd nobody waits for company: one that has just missed a full batch waits for"
        f" that one and has its answer with the next, after {figure(worst)}."
    )


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
    if chosen.bears:
        processes = ceil(proposal.rate / chosen.bears)
        return (
            f"{number(proposal.rate)} requests a second want {processes} processes, each on a"
            f" device of its own: one answers {number(chosen.bears)} a second within {latency}."
        )
    alone = min(curve.seconds(size, 0.99) for size in curve.sizes)
    if alone > proposal.goal.latency:
        return (
            f"A batch of one takes {figure(alone)} by itself: it wants a faster model or device,"
            f" or a target above that."
        )
    return f"It wants a faster model or device, or a target of {figure(2 * alone)} or more."
