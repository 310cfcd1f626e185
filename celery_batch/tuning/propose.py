"""
Which settings to take.

Rule 1: the size is the one with which most requests a second are answered within
        the target.  Of those about as good it is the smallest that answers about as many
        items in full batches, for the day when more come than expected; but two full
        batches, the one just missed and its own, should not take longer than the target.
Rule 2: how long to wait is what makes the slowest of the requests quickest, at the
        rate that is expected; where it makes no difference, the defaults stay.
Rule 3: nothing is proposed that misses the target in the simulation while something
        else that was tried meets it.
Rule 4: where nothing meets it, the nearest is proposed, and it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.simulate import Forecast, Load, simulate

__all__ = ["CARRIED", "Goal", "Proposal", "Trial", "candidates", "most_borne", "propose"]

#: The default of the option, in seconds.
_MAX_WAIT = 0.01

#: Parts of the target that may be worth waiting for company.
_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)

#: The share of requests that a target is about.
_NEARLY_ALL = 0.99

#: Rates are told apart to this share.
_FINE = 0.02

#: Seconds, and rates, that differ by less are about the same.
_NEAR = 1.1

#: The share of what can be borne that is expected where nothing is said.
_EXPECTED = 0.7

#: Messages a second that no worker reads, stores and acknowledges more of, whatever its model;
#: most carry fewer.
CARRIED = 10_000.0


@dataclass(frozen=True, slots=True)
class Goal:
    """
    What is wanted.

    Args:
        latency: Seconds in which 99 of 100 requests are to have their answers.
        rate: Requests a second for one process; None if nobody knows.
    """

    latency: float
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """
    Settings, and what they lead to.

    Args:
        policy: The settings.
        bears: Most requests a second that are answered within the target.
        forecast: At the rate that is expected.
        meets: Whether the target is met at that rate.
    """

    policy: BatchPolicy
    bears: float
    forecast: Forecast
    meets: bool


@dataclass(frozen=True, slots=True)
class Proposal:
    """
    What to set, and what else was tried.

    Args:
        goal: What was wanted, with a rate.
        chosen: What to set.
        sizes: Each size with the default waits.
    """

    goal: Goal
    chosen: Trial
    sizes: tuple[Trial, ...]

    @property
    def rate(self) -> float:
        """Requests a second that are expected."""
        return self.goal.rate or 0.0


def propose(
    curve: Curve, goal: Goal, tell: Callable[[str], None] = lambda _words: None
) -> Proposal:
    """
    Choose settings for a model.

    Args:
        curve: What its batches take.
        goal: What is wanted.
        tell: Is told how far it is.
    """
    bears = {}
    for size in curve.sizes:
        tell(f"simulating requests with batches of up to {size}")
        policy = BatchPolicy(size, min(_MAX_WAIT, goal.latency))
        bears[policy] = most_borne(policy, curve, goal.latency)
    most = max(bears.values()) or curve.capacity(curve.sizes[-1])
    rate = goal.rate or min(_EXPECTED * most, CARRIED)
    goal = Goal(goal.latency, rate)
    sizes = tuple(_trial(policy, curve, goal, borne) for policy, borne in bears.items())
    tell("simulating waits")
    able = [trial for trial in sizes if rate < curve.capacity(_size(trial))]
    for trial in _best_first(able, curve, goal.latency):
        chosen = _best_wait(trial, curve, goal)
        if chosen.meets:
            return Proposal(goal, chosen, sizes)
    return Proposal(goal, _nearest(sizes, curve, goal.latency), sizes)


def candidates(policy: BatchPolicy, latency: float) -> Iterator[BatchPolicy]:
    """
    Yield a policy, and others of its size that wait differently.

    Args:
        policy: The one with the default waits.
        latency: The target, in seconds.
    """
    size = policy.max_batch_size
    yield policy
    yield BatchPolicy(size, 0.0)
    for part in _PARTS:
        wait = _rounded(latency * part)
        yield BatchPolicy(size, wait, wait)


def most_borne(policy: BatchPolicy, curve: Curve, latency: float) -> float:
    """
    Return the most requests a second that a policy answers within a target.

    Args:
        policy: The settings.
        curve: What batches take.
        latency: The target for 99 of 100 requests, in seconds.

    Returns:
        0 if it is met at no rate at all.
    """
    if curve.seconds(1, _NEARLY_ALL) + curve.way > latency:
        return 0.0  # nobody waits for anybody, and it is too slow
    high = curve.capacity(policy.max_batch_size)
    low = 0.0
    while high - low > _FINE * high:
        middle = (low + high) / 2
        if simulate(policy, curve, Load.at(middle)).p99 <= latency:
            low = middle
        else:
            high = middle
            if high < _FINE / curve.seconds(1):  # hardly anybody comes, and still
                return 0.0
    return low


def _trial(policy: BatchPolicy, curve: Curve, goal: Goal, bears: float) -> Trial:
    rate = goal.rate or 0.0  # by now there is one
    forecast = simulate(policy, curve, Load.at(rate))
    keeps_up = rate < curve.capacity(policy.max_batch_size)
    return Trial(policy, bears, forecast, keeps_up and forecast.p99 <= goal.latency)


def _best_first(sizes: Sequence[Trial], curve: Curve, latency: float) -> list[Trial]:
    """Order sizes by what speaks for them."""
    left, ordered = list(sizes), []
    while left:
        most = max(trial.bears for trial in left)
        near = [trial for trial in left if trial.bears * _NEAR >= most]
        calm = [trial for trial in near if 2 * curve.seconds(_size(trial)) <= latency] or near[:1]
        full = max(curve.capacity(_size(trial)) for trial in calm)
        first = next(trial for trial in calm if curve.capacity(_size(trial)) * _NEAR >= full)
        ordered.append(first)
        left.remove(first)
    return ordered


def _size(trial: Trial) -> int:
    return trial.policy.max_batch_size


def _best_wait(trial: Trial, curve: Curve, goal: Goal) -> Trial:
    """Return a size with the wait that suits it; the trial itself if it makes no difference."""
    _, *others = candidates(trial.policy, goal.latency)
    tried = [trial, *(_trial(policy, curve, goal, trial.bears) for policy in others)]
    good = [each for each in tried if each.meets] or tried
    quickest = min(each.forecast.p99 for each in good)
    return next(each for each in good if each.forecast.p99 <= quickest * _NEAR)


def _nearest(sizes: Sequence[Trial], curve: Curve, latency: float) -> Trial:
    """Return what misses the target by least."""
    bearing = [trial for trial in sizes if trial.bears > 0]
    if bearing:
        return _best_first(bearing, curve, latency)[0]
    return min(sizes, key=lambda trial: trial.forecast.p99)


def _rounded(seconds: float) -> float:
    """Return a time as people write it: to two digits."""
    return float(f"{seconds:.2g}")
