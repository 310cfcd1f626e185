"""
How a model is measured.

Rule 1: sizes grow until something speaks against it: memory, time, or that a
        larger batch answers fewer items a second.
Rule 2: all sizes are measured in turn, round after round, so that a machine that
        is slower for a while is slower for all of them.
Rule 3: who calls the model, and by which clock, is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_batch.errors import OutOfMemory
from celery_batch.formatting import figure
from celery_batch.tuning.curve import Curve, Point

__all__ = ["Plan", "Seen", "measure"]

#: A size whose rate is less than this share of the best so far is a step down; one may be
#: chance, two are not.
_WORTHWHILE = 0.9
_STEPS_DOWN = 2

#: Runs of a size before it is judged; the first one may load kernels.
_TRIES = 5

#: Most runs of one size in a round, of those that are quick.
_MOST_IN_A_ROUND = 8

#: Rounds, whatever time there is.
_FEWEST_ROUNDS = 5

#: Rounds beyond which a percentile of a quick model gets no truer, only what calls it takes time.
_MOST_ROUNDS = 250


@dataclass(frozen=True, slots=True)
class Seen:
    """
    One run of a batch.

    Args:
        seconds: What it took.
        memory: Most bytes of the device's memory in use meanwhile; None if it cannot tell.
    """

    seconds: float
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What to measure.

    Args:
        sizes: Items in a batch, smallest first.
        seconds: How long each size is measured for, about.
        longest: Seconds of a batch beyond which no larger one is of interest.
        asked_for: The sizes were chosen by hand: nothing but memory stops before the last.
    """

    sizes: Sequence[int]
    seconds: float = 2.0
    longest: float = math.inf
    asked_for: bool = False


def measure(run: Callable[[int], Seen], plan: Plan, tell: Callable[[str], None]) -> Curve:
    """
    Find out what batches take.

    Args:
        run: Runs a batch of so many items once.
        plan: What to measure.
        tell: Is told how far it is.

    Returns:
        Everything that was seen, without each size's first run.

    Raises:
        OutOfMemory: From `run`, which may raise it, if the smallest size does not fit.
    """
    found: dict[int, list[Seen]] = {}
    cap = _grow(run, plan, found, tell)
    rounds = _polls(found, plan)
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        sizes = sorted(found, reverse=number % 2 == 1)  # a drift strikes nobody's turn alone
        cap = _round(run, sizes, found) or cap
    return Curve(tuple(_point(size, runs) for size, runs in sorted(found.items())), cap)


def _grow(
    run: Callable[[int], Seen],
    plan: Plan,
    found: dict[int, list[Seen]],
    tell: Callable[[str], None],
) -> str:
    """Try the sizes, smallest first; return why it ended before the last."""
    best, best_size, down = 0.0, 0, 0
    for size in plan.sizes:
        tell(f"batches of {size}")
        try:
            run(size)
            runs = [run(size) for _ in range(_TRIES)]
        except OutOfMemory as error:
            if not found:
                raise
            return f"a batch of {size} does not fit into memory ({_first_line(error)})"
        found[size] = runs
        seconds = min(each.seconds for each in runs)
        rate = size / max(seconds, 1e-9)
        if plan.asked_for:
            continue
        if seconds > plan.longest:
            return f"a batch of {size} takes {figure(seconds)} already"
        down = down + 1 if rate < _WORTHWHILE * best else 0
        if down == _STEPS_DOWN:
            return f"batches of {size} answer fewer items a second than those of {best_size}"
        if rate > best:
            best, best_size = rate, size
    return ""


def _polls(found: dict[int, list[Seen]], plan: Plan) -> int:
    one = sum(_usual(runs) * _times(runs, found) for runs in found.values())
    rounds = int(plan.seconds * len(found) / max(one, 1e-6))
    return min(max(rounds, _FEWEST_ROUNDS), _MOST_ROUNDS)


def _times(runs: list[Seen], found: dict[int, list[Seen]]) -> int:
    """Return how often a size is run in a round: the quick ones more often."""
    slowest = max(_usual(each) for each in found.values())
    return min(max(int(slowest / max(_usual(runs), 1e-9)), 1), _MOST_IN_A_ROUND)


def _round(run: Callable[[int], Seen], sizes: list[int], found: dict[int, list[Seen]]) -> str:
    times = {size: _times(found[size], found) for size in sizes}
    for size in sizes:
        try:
            found[size] += [run(size) for _ in range(times[size])]
        except OutOfMemory as error:  # what fitted once need not fit again
            if size == min(found):
                raise
            for each in [each for each in found if each >= size]:
                del found[each]
            return f"a batch of {size} does not always fit into memory ({_first_line(error)})"
    return ""


def _usual(runs: list[Seen]) -> float:
    return sorted(each.seconds for each in runs)[len(runs) // 2]


def _point(size: int, runs: list[Seen]) -> Point:
    memory = max((each.memory for each in runs if each.memory is not None), default=None)
    return Point(size, tuple(sorted(each.seconds for each in runs)), memory)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
