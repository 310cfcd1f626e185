"""
Chooses settings by simulation.

Rule 1: the size, in rows or in cost, is the one with the highest rate of requests within the
        latency target.
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
from dataclasses import dataclass, replace

from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.simulate import Forecast, Load, simulate

__all__ = ["MOST_MESSAGES", "NEARLY_ALL", "Proposal", "Trial", "limit_of", "max_rate", "propose"]

#: Returns the requests to simulate at a rate.
Loads = Callable[[float], Load]

#: At this rate requests come at once.
_AT_ONCE = 1e9

#: Values of ``sort_window`` to try beside the task's own.
_WINDOWS = (2, 4, 16, 32)

#: The default of the option, in seconds.
_MAX_WAIT = 0.01

#: Parts of the target that may be worth waiting for further requests.
_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)

#: The quantile of a latency target.
NEARLY_ALL = 0.99

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
    """Settings, and their simulated effect."""

    policy: BatchPolicy
    max_rate: float  # most requests a second within the target
    capacity: float  # most requests a second
    forecast: Forecast  # at the expected rate
    meets: bool  # whether the target is met at that rate


@dataclass(frozen=True, slots=True)
class Proposal:
    """The settings to use, and others that were tried."""

    latency: float  # the target for 99 of 100 requests, in seconds
    rate: float  # the expected requests a second in one process
    chosen: Trial
    sizes: tuple[Trial, ...]  # each size with the default waits


def propose(
    curve: Curve,
    latency: float,
    rate: float | None = None,
    report: Callable[[str], None] = lambda _words: None,
    *,
    base: BatchPolicy | None = None,  # the task's, if its batches are limited by cost
    load: Loads = Load.at,
    max_item_cost: float | None = None,
) -> Proposal:
    """Choose settings for a model, for most of what one process can answer unless given a rate."""
    max_rates, capacities = {}, {}
    for policy in _limited(curve, min(_MAX_WAIT, latency), base, load, max_item_cost):
        report(f"simulating requests with batches of up to {limit_of(policy)}")
        capacities[policy] = _capacity(policy, curve, load)
        max_rates[policy] = max_rate(policy, curve, latency, load)
    most = max(max_rates.values()) or max(capacities.values())
    rate = rate or min(_EXPECTED * most, MOST_MESSAGES)
    sizes = tuple(
        _trial(policy, highest, capacities[policy], curve, latency, load(rate))
        for policy, highest in max_rates.items()
    )
    report("simulating waits")
    sufficient = [trial for trial in sizes if rate < trial.capacity]
    for trial in _best_first(sufficient, curve, latency):
        chosen = _best_wait(trial, curve, latency, load(rate))
        if chosen.meets:
            return Proposal(latency, rate, chosen, sizes)
    return Proposal(latency, rate, _nearest(sizes, curve, latency), sizes)


def limit_of(policy: BatchPolicy) -> str:
    """Return how large its batches may be, as words."""
    cost = policy.max_batch_cost
    return str(policy.max_batch_size) if cost is None else f"a cost of {cost:,g}"


def _limited(
    curve: Curve,
    wait: float,
    base: BatchPolicy | None,
    load: Loads,
    max_item_cost: float | None,
) -> Iterator[BatchPolicy]:
    """Yield policies with the default waits and each limit that is tried."""
    if base is None or curve.line is None:
        yield from (BatchPolicy(size, wait) for size in curve.sizes)
        return
    cost = max(*load(1.0).costs, max_item_cost or 0.0)
    base = replace(base, max_wait=wait, linger=None, target_latency=None, shed=False)
    yield replace(base, max_batch_cost=cost)
    while 2 * cost <= curve.line.highest:
        cost *= 2
        yield replace(base, max_batch_cost=cost)


def _capacity(policy: BatchPolicy, curve: Curve, load: Loads) -> float:
    """Return the most requests a second with a policy."""
    if curve.line is None and load == Load.at:
        return curve.capacity(policy.max_batch_size)
    return simulate(policy, curve, load(_AT_ONCE)).rate


def candidates(policy: BatchPolicy, latency: float) -> Iterator[BatchPolicy]:
    """Yield a policy, and others of its size with other waits and windows."""
    yield policy
    yield replace(policy, max_wait=0.0)
    for part in _PARTS:
        wait = _rounded(latency * part)
        yield replace(policy, max_wait=wait, linger=wait)
    if policy.sorts:
        yield from (replace(policy, max_wait=0.0, sort_window=batches) for batches in _WINDOWS)


def max_rate(policy: BatchPolicy, curve: Curve, latency: float, load: Loads = Load.at) -> float:
    """Return the highest rate of requests at which a policy meets a target; 0 if at none."""
    if curve.seconds(1, NEARLY_ALL) + curve.overhead > latency:
        return 0.0  # too slow even without waiting
    high = _capacity(policy, curve, load)
    low = 0.0
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if simulate(policy, curve, load(middle)).p99 <= latency:
            low = middle
        else:
            high = middle
            if high < _PRECISION / curve.seconds(1):  # too slow even with hardly any requests
                return 0.0
    return low


def _trial(
    policy: BatchPolicy, highest: float, capacity: float, curve: Curve, latency: float, load: Load
) -> Trial:
    forecast = simulate(policy, curve, load)
    meets = load.rate < capacity and forecast.p99 <= latency
    return Trial(policy, highest, capacity, forecast, meets)


def _best_first(sizes: Sequence[Trial], curve: Curve, latency: float) -> list[Trial]:
    """Return sizes in order of preference."""
    left, ordered = list(sizes), []
    while left:
        most = max(trial.max_rate for trial in left)
        near = [trial for trial in left if trial.max_rate * _NEAR >= most]
        short = [trial for trial in near if 2 * curve.full(trial.policy) <= latency] or near[:1]
        full = max(trial.capacity for trial in short)
        first = next(trial for trial in short if trial.capacity * _NEAR >= full)
        ordered.append(first)
        left.remove(first)
    return ordered


def _best_wait(trial: Trial, curve: Curve, latency: float, load: Load) -> Trial:
    """Return a size with its best wait; the trial itself if that makes no difference."""
    _, *others = candidates(trial.policy, latency)
    rates = trial.max_rate, trial.capacity
    tried = [trial, *(_trial(each, *rates, curve, latency, load) for each in others)]
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
