"""
A load test: when requests are sent, and what their answers say.

Rule 1: requests have their times before the test begins, and never wait for one another's answers.
Rule 2: a request's latency counts from its time, also where it was sent late: a service that
        stalls delays those that come meanwhile, and hiding that is called coordinated omission.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "TIMEOUT",
    "LoadResult",
    "Outcome",
    "arrivals",
    "load_result",
    "mean_batch_size",
    "parse_rates",
    "quantile",
]

#: The kind of error of a request without an answer in time; no exception class has this name.
TIMEOUT = "timeout"

#: Most rates of one test; a ramp with more is a mistake.
_MOST_RATES = 1000

#: What is left of the last step of a ramp after rounding, in steps.
_ROUNDING = 1e-9

#: The number of parts of a ramp.
_FIRST_LAST_STEP = 3


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the rates of a text: numbers with commas between, or ramps as in ``100:500:100``."""
    rates = tuple(rate for part in text.split(",") for rate in _ramp(part))
    if not rates or len(rates) > _MOST_RATES or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"no rates: {text!r}")
    return rates


def _ramp(part: str) -> list[float]:
    numbers = [float(number) for number in part.split(":")]
    if len(numbers) == 1:
        return numbers
    if len(numbers) != _FIRST_LAST_STEP:
        raise ValueError(f"no ramp: {part!r}")
    first, last, step = numbers
    count = (last - first) / step + 1 + _ROUNDING if step > 0 else 0
    if not 1 <= count <= _MOST_RATES:
        raise ValueError(f"no ramp: {part!r}")
    return [first + number * step for number in range(int(count))]


def arrivals(rate: float, duration: float, seed: int) -> list[float]:
    """Return, in order, at which seconds independent requests come, the same with the same seed."""
    chance = random.Random(seed)  # noqa: S311 (no secret)
    count = max(1, round(rate * duration))
    # A Poisson process of which the number of requests is known: so the rate is exactly offered.
    return sorted(chance.uniform(0.0, duration) for _ in range(count))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the least number that a share of all numbers do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Outcome(NamedTuple):
    """What became of one request."""

    #: When it was to be sent, in seconds from the beginning.
    due: float
    #: When the broker had it; None if it was refused or not sent in time.
    sent: float | None
    #: When its answer or its error came; at the timeout without either.
    ended: float
    #: The kind of its error, empty for an answer.
    error: str = ""
    #: What the error says.
    message: str = ""
    #: Rows in the model call that computed the answer; None or 0 where there is none.
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What one rate has shown, in seconds from when requests were to be sent."""

    #: Requests a second that were offered.
    rate: float
    #: Seconds in which they were offered.
    duration: float
    #: How many these are.
    requests: int
    #: The 99th percentile of the time until the broker had a request; None if it got none.
    send_delay: float | None
    #: How many were answered without an error.
    answered: int
    #: Answers a second, until the last one.
    achieved_rate: float
    #: The others by the kind of their error.
    errors: dict[str, int] = field(default_factory=dict)
    #: What the first error of each kind says.
    messages: dict[str, str] = field(default_factory=dict)
    #: The median latency of answers and timeouts, which count with the timeout; None if there were
    #: neither.
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    #: Mean rows of the batches that the answers were computed in; None if no worker said so.
    batch_size: float | None = None


def load_result(
    rate: float, duration: float, timeout: float, outcomes: Sequence[Outcome]
) -> LoadResult:
    """Return what the requests of one rate have shown."""
    answers = [outcome for outcome in outcomes if not outcome.error]
    failed = [outcome for outcome in outcomes if outcome.error]
    messages: dict[str, str] = {}
    for outcome in failed:
        messages.setdefault(outcome.error, outcome.message)
    delays = sorted(outcome.sent - outcome.due for outcome in outcomes if outcome.sent is not None)
    last_answer = max((outcome.ended for outcome in answers), default=0.0)
    return LoadResult(
        rate=rate,
        duration=duration,
        requests=len(outcomes),
        send_delay=quantile(delays, 0.99) if delays else None,
        answered=len(answers),
        achieved_rate=len(answers) / max(duration, last_answer),
        errors=dict(Counter(outcome.error for outcome in failed).most_common()),
        messages=messages,
        batch_size=mean_batch_size([outcome.batch_size for outcome in answers]),
        **_latencies(outcomes, timeout),
    )


def _latencies(outcomes: Sequence[Outcome], timeout: float) -> dict[str, Any]:
    ordered = sorted(
        # A difference may be less than the timeout, after rounding.
        timeout if outcome.error == TIMEOUT else outcome.ended - outcome.due
        for outcome in outcomes
        if outcome.error in ("", TIMEOUT)
    )
    if not ordered:
        return {}
    return {
        "p50": quantile(ordered, 0.5),
        "p90": quantile(ordered, 0.9),
        "p99": quantile(ordered, 0.99),
        "max": ordered[-1],
    }


def mean_batch_size(sizes: Sequence[int | None]) -> float | None:
    """Return the mean rows of batches, of which each request says its own."""
    # A batch of 10 is named by ten requests: so each counts for a part of its batch.
    known = [size for size in sizes if size]
    return len(known) / sum(1 / size for size in known) if known else None
