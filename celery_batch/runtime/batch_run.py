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
    """What is counted of a run; threads share a runner, so that it keeps none itself."""

    calls: int = 0  # how often the model was called
    isolated: int = 0  # items that made their batch fail
    out_of_memory: int = 0  # calls that ran out of memory
    cost: float = 0.0  # what the items of all calls have cost, where that is limited
    padded_cost: float = 0.0  # what these calls have cost with their padding
    padding_rows: int = 0  # rows that filled calls up to their sizes


class Call(NamedTuple):
    """A call of the model."""

    part: range  # the indexes of its items
    size: float  # the number of its rows, with padding rows, or its cost, where that is limited
    was_limited: bool  # whether it would have had more items if more fitted into memory


@dataclass(slots=True)
class Collated:
    """The first call of a batch, whose rows were collated before the batch runs."""

    items: Sequence[int]  # the indexes of its items
    rows: int  # the number of its rows, with padding rows
    value: Any = None  # what `collate` returned
    error: Exception | None = None  # what it raised instead

    def take(self) -> Any:
        """Return the value, which is kept here no longer: it may be large."""
        value, self.value = self.value, None
        return value


class Uncollated(NamedTuple):
    """The output of a call, of which `uncollate` has made no outputs yet."""

    items: Sequence[int]  # the indexes of its items
    call: Call
    rows: int  # the number of its rows, with padding rows
    output: Any  # what `predict` returned


@dataclass(slots=True)
class BatchRun:
    """One batch that runs."""

    columns: Sequence[list[Any]]  # one list per parameter, in the order of the plan if there is one
    order: Sequence[int]  # the indexes of its items, in this order
    bisection: Bisection  # the parts of the batch that have not run
    plan: CallPlan | None  # its calls, where cost is limited
    counts: Counts  # what is counted of it
    alone: bool  # whether all items are one request
    collated: Collated | None = None  # its first call, if its rows are collated
    #: Takes the outputs of calls that are uncollated later; None to do that at once.
    uncollated: list[Uncollated] | None = None
