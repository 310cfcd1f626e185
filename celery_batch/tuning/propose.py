"""
Chooses settings by simulation.

Rule 1: the size is the one with the highest rate of requests within the latency target.
        Among sizes that are about as good, it is the smallest with about the same throughput
        in full batches, for the day when more requests come than expected; but two full
        batches, the one just missed and its own, should not take longer than the target.
Rule 2: the waits are those with the lowest 99th percentile at the expected rate; if they
        make no difference, the defaults stay.
Rule 3: settings that miss the target in the simulation are not proposed while others that
        were tried meet it.
Rule 4: if none meets the target, the nearest is proposed, and the explanation says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.simulate import Forecast, Load, simulate

__all__ = ["MOST_MESSAGES", "Proposal", "Trial", "candidates", "max_rate", "propose"]

#: The default of the option, in seconds.
_MAX_WAIT = 0.01

#: Parts of the target that may be worth waiting for further requests.
_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)

#: The quantile of a latency target.
_NEARLY_ALL = 0.99

#: The precision of rates.
_PRECISION = 0.02

#: Times and rates that differ by less than this factor are about the same.
_NEAR = 1.1

#: The share of the highest rate that is expected if the user names no rate.
_EXPECTED = 0.7

#: Most messages a second that any worker reads, stores and acknowledges; most workers reach
#: less.
MOST_MESSAGES = 10_000.0


@dataclass(frozen=True, slots=True)
class Trial:
    """
    Settings, and their simulated effect.

    Args:
        policy: The settings.
        max_rate: Most requests a second within the target.
        forecast: At the expected rate.
        meets: Whether the target is met at that rate.
    """

    policy: BatchPolicy
    max_rate: float
    forecast: Forecast
    meets: bool


@dataclass(frozen=True, slots=True)
class Proposal:
    """
    The settings to use, and others that were tried.

    Args:
        latency: The target for 99 of 100 requests, in seconds.
        rate: The expected requests a second in one process.
        chosen: The settings to use.
        sizes: Each size with the default waits.
    """

    latency: float
    rate: float
    chosen: Trial
    sizes: tuple[Trial, ...]


def propose(
    curve: Curve,
    latency: float,
    rate: float | None = None,
    report: Callable[[str], None] = lambda _words: None,
) -> Proposal:
    """
    Choose settings for a model.

    Args:
        curve: How long its batches take.
        latency: Seconds in which 99 of 100 requests are to have their results.
        rate: Requests a second for one process; most of what it can answer unless given.
        report: Called with the progress.
    """
    max_rates = {}
    for size in curve.sizes:
        report(f"simulating requests with batches of up to {size}")
        policy = BatchPolicy(size, min(_MAX_WAIT, latency))
        max_rates[policy] = max_rate(policy, curve, latency)
    most = max(max_rates.values()) or curve.capacity(curve.sizes[-1])
    rate = rate or min(_EXPECTED * most, MOST_MESSAGES)
    sizes = tuple(
        _trial(policy, curve, latency, rate, highest) for policy, highest in max_rates.items()
    )
    report("simulating waits")
    sufficient = [trial for trial in sizes if rate < curve.capacity(_size(trial))]
    for trial in _best_first(sufficient, curve, latency):
        chosen = _best_wait(trial, curve, latency, rate)
        if chosen.meets:
            return Proposal(latency, rate, chosen, sizes)
    return Proposal(latency, rate, _nearest(sizes, curve, latency), sizes)


def candidates(policy: BatchPolicy, latency: float) -> Iterator[BatchPolicy]:
    """
    Yield a policy, and others of its size with other waits.

    Args:
        policy: With the default waits.
        latency: The target, in seconds.
    """
    size = policy.max_batch_size
    yield policy
    yield BatchPolicy(size, 0.0)
    for part in _PARTS:
        wait = _rounded(latency * part)
        yield BatchPolicy(size, wait, wait)


def max_rate(policy: BatchPolicy, curve: Curve, latency: float) -> float:
    """
    Return the highest rate of requests at which a policy meets a target; 0 if at none.

    Args:
        policy: The settings.
        curve: How long batches take.
        latency: The target for 99 of 100 requests, in seconds.
    """
    if curve.seconds(1, _NEARLY_ALL) + curve.overhead > latency:
        return 0.0  # too slow even without waiting
    high = curve.capacity(policy.max_batch_size)
    low = 0.0
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if simulate(policy, curve, Load.at(middle)).p99 <= latency:
            low = middle
        else:
            high = middle
            if high < _PRECISION / curve.seconds(1):  # too slow even with hardly any requests
                return 0.0
    return low


def _trial(policy: BatchPolicy, curve: Curve, latency: float, rate: float, highest: float) -> Trial:
    forecast = simulate(policy, curve, Load.at(rate))
    keeps_up = rate < curve.capacity(policy.max_batch_size)
    return Trial(policy, highest, forecast, keeps_up and forecast.p99 <= latency)


def _best_first(sizes: Sequence[Trial], curve: Curve, latency: float) -> list[Trial]:
    """Return sizes in order of preference."""
    left, ordered = list(sizes), []
    while left:
        most = max(trial.max_rate for trial in left)
        near = [trial for trial in left if trial.max_rate * _NEAR >= most]
        short = [trial for trial in near if 2 * curve.seconds(_size(trial)) <= latency] or near[:1]
        full = max(curve.capacity(_size(trial)) for trial in short)
        first = next(trial for trial in short if curve.capacity(_size(trial)) * _NEAR >= full)
        ordered.append(first)
        left.remove(first)
    return ordered


def _size(trial: Trial) -> int:
    return trial.policy.max_batch_size


def _best_wait(trial: Trial, curve: Curve, latency: float, rate: float) -> Trial:
    """Return a size with its best wait; the trial itself if that makes no difference."""
    _, *others = candidates(trial.policy, latency)
    tried = [trial, *(_trial(each, curve, latency, rate, trial.max_rate) for each in others)]
    meeting = [each for each in tried if each.meets] or tried
    quickest = min(each.forecast.p99 for each in meeting)
    return next(each for each in meeting if each.forecast.p99 <= quickest * _NEAR)


def _nearest(sizes: Sequence[Trial], curve: Curve, latency: float) -> Trial:
    """Return the settings that miss the target by least."""
    possible = [trial for trial in sizes if trial.max_rate > 0]
    if possible:
        return _best_first(possible, curve, latency)[0]
    return min(sizes, key=lambda trial: trial.forecast.p99)


def _rounded(seconds: float) -> float:
    """Return a time to two digits, as people write it."""
    return float(f"{seconds:.2g}")
