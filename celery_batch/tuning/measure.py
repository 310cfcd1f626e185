"""
Measures a model with batches of several sizes.

Rule 1: sizes grow until memory or the longest acceptable time is exceeded, or larger batches
        compute fewer items a second, or less cost where that limits batches.
Rule 2: all sizes are measured in turn, round after round, so that a machine that
        is slower for a while is slower for all of them.
Rule 3: the caller decides how the model is called, and with which clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_high

from celery_batch.errors import OutOfMemory
from celery_batch.formatting import figure
from celery_batch.tuning.curve import CostLine, Curve, Point

__all__ = ["Plan", "Run", "measure"]

#: A size whose rate is below this share of the best so far is worse; one such size may be
#: chance, two in a row are not.
_WORSE = 0.9
_WORSE_IN_A_ROW = 2

#: Runs of a size at first, after one that may load kernels.
_FIRST_RUNS = 5

#: Most runs of one size in a round.
_MOST_IN_A_ROUND = 8

#: Rounds, even if they take longer than planned.
_FEWEST_ROUNDS = 5

#: More rounds make percentiles of a quick model no more exact.
_MOST_ROUNDS = 250


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a batch."""

    seconds: float  # how long it took
    memory: int | None = None  # most bytes of the device's memory in use meanwhile; None if unknown
    cost: float | None = None  # of the batch with its padding; None where cost does not count


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    #: Items in a batch, smallest first.
    sizes: Sequence[int]
    #: How long each size is measured, about.
    seconds: float = 2.0
    #: No larger sizes are measured after a batch that takes this many seconds.
    longest: float = math.inf
    #: The user chose the sizes: only memory ends the measurement before the last.
    asked_for: bool = False


def measure(run: Callable[[int], Run], plan: Plan, report: Callable[[str], None]) -> Curve:
    """Measure how long batches take; the first run of each size does not count."""
    found: dict[int, list[Run]] = {}
    cap = _grow(run, plan, found, report)
    medians = {size: median_high(each.seconds for each in runs) for size, runs in found.items()}
    slowest = max(medians.values())
    # Quick ones run more often.
    times = {
        size: min(max(int(slowest / max(seconds, 1e-9)), 1), _MOST_IN_A_ROUND)
        for size, seconds in medians.items()
    }
    seconds = sum(medians[size] * times[size] for size in found)
    rounds = int(plan.seconds * len(found) / max(seconds, 1e-6))
    rounds = min(max(rounds, _FEWEST_ROUNDS), _MOST_ROUNDS)
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        sizes = sorted(found, reverse=number % 2 == 1)  # so that a drift affects all sizes alike
        cap = _round(run, sizes, times, found) or cap
    points = tuple(_point(size, runs) for size, runs in sorted(found.items()))
    costs = [
        (each.cost, each.seconds)
        for runs in found.values()
        for each in runs
        if each.cost is not None
    ]
    return Curve(points, cap, line=CostLine.fit(costs) if costs else None)


def _grow(
    run: Callable[[int], Run],
    plan: Plan,
    found: dict[int, list[Run]],
    report: Callable[[str], None],
) -> str:
    """Measure ever larger sizes; return why it ended before the last."""
    best, best_size, worse = 0.0, 0, 0
    for size in plan.sizes:
        report(f"batches of {size}")
        try:
            run(size)
            runs = [run(size) for _ in range(_FIRST_RUNS)]
        except OutOfMemory as error:
            if not found:
                raise
            return f"a batch of {size} does not fit into memory ({_first_line(error)})"
        found[size] = runs
        seconds = min(each.seconds for each in runs)
        # Rows of unlike lengths pad each other, so more of them cost more each.
        work = max(size if each.cost is None else each.cost for each in runs)
        rate = work / max(seconds, 1e-9)
        if plan.asked_for:
            continue
        if seconds > plan.longest:
            return f"a batch of {size} takes {figure(seconds)} already"
        worse = worse + 1 if rate < _WORSE * best else 0
        if worse == _WORSE_IN_A_ROW:
            amount = "fewer items" if runs[0].cost is None else "less cost"
            return f"batches of {size} items compute {amount} a second than those of {best_size}"
        if rate > best:
            best, best_size = rate, size
    return ""


def _round(
    run: Callable[[int], Run], sizes: list[int], times: dict[int, int], found: dict[int, list[Run]]
) -> str:
    for size in sizes:
        try:
            found[size] += [run(size) for _ in range(times[size])]
        except OutOfMemory as error:  # a size that fitted once need not fit again
            if size == min(found):
                raise
            for each in [each for each in found if each >= size]:
                del found[each]
            return f"a batch of {size} does not always fit into memory ({_first_line(error)})"
    return ""


def _point(size: int, runs: list[Run]) -> Point:
    memory = max((each.memory for each in runs if each.memory is not None), default=None)
    return Point(size, tuple(sorted(each.seconds for each in runs)), memory)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
