"""One batch on its way through a model: its calls, and what is kept between their stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_batch.batching.call_plan import CallPlan
from celery_batch.batching.isolation import Bisection

__all__ = ["BatchRun", "Call", "Collated", "Counts", "Uncollated"]


@dataclass(slots=True)
class Counts:
    """
    What is counted of a run; threads share a runner, so that it keeps none itself.

    Args:
        calls: How often the model was called.
        isolated: Items that made their batch fail.
        out_of_memory: Calls that ran out of memory.
        cost: What the items of all calls have cost, where that is limited.
        padded_cost: What these calls have cost with their padding.
        padding_rows: Rows that filled calls up to their sizes.
    """

    calls: int = 0
    isolated: int = 0
    out_of_memory: int = 0
    cost: float = 0.0
    padded_cost: float = 0.0
    padding_rows: int = 0


class Call(NamedTuple):
    """
    A call of the model.

    Args:
        part: The indexes of its items.
        size: The number of its rows, with padding rows, or its cost, where that is limited.
        was_limited: Whether it would have had more items if more fitted into memory.
    """

    part: range
    size: float
    was_limited: bool


@dataclass(slots=True)
class Collated:
    """
    The first call of a batch, whose rows were collated before the batch runs.

    Args:
        items: The indexes of its items.
        rows: The number of its rows, with padding rows.
        value: What `collate` returned.
        error: What it raised instead.
    """

    items: Sequence[int]
    rows: int
    value: Any = None
    error: Exception | None = None

    def take(self) -> Any:
        """Return the value, which is kept here no longer: it may be large."""
        value, self.value = self.value, None
        return value


class Uncollated(NamedTuple):
    """
    The output of a call, of which `uncollate` has made no outputs yet.

    Args:
        items: The indexes of its items.
        call: The call.
        rows: The number of its rows, with padding rows.
        output: What `predict` returned.
    """

    items: Sequence[int]
    call: Call
    rows: int
    output: Any


@dataclass(slots=True)
class BatchRun:
    """
    One batch that runs.

    Args:
        columns: One list per parameter, in the order of the plan if there is one.
        order: The indexes of its items, in this order.
        bisection: The parts of the batch that have not run.
        plan: Its calls, where cost is limited.
        counts: What is counted of it.
        alone: Whether all items are one request.
        collated: Its first call, if its rows are collated.
        uncollated: Takes the outputs of calls that are uncollated later; None to do that at once.
    """

    columns: Sequence[list[Any]]
    order: Sequence[int]
    bisection: Bisection
    plan: CallPlan | None
    counts: Counts
    alone: bool
    collated: Collated | None = None
    uncollated: list[Uncollated] | None = None
