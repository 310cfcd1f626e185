"""The unit of batching."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Request"]

T = TypeVar("T")


class Request(NamedTuple, Generic[T]):  # a frozen dataclass costs three times as much to make
    """
    An item, or a chunk of many rows, that waits for the model.

    Args:
        item: The model's input; the batcher never looks inside.
        arrived: The time of its arrival, in seconds of the caller's monotonic clock.
        urgency: A smaller number goes first; within one urgency, first come, first served.
        alone: It was in a batch whose process died, and may be the reason, so it runs
            without others.
        deadline: Until when it may begin to run, on the clock of `arrived`.  Only a request
            that runs again after a time limit has one; it runs alone.
        rows: How many rows it has, at least 1.
        cost: Its share of the work of a batch, where that is limited: of its longest row if rows
            are padded, else of all its rows.
        key: Where batches are formed by key, only requests with equal keys share one.
    """

    item: T
    arrived: float
    urgency: int = 0
    alone: bool = False
    deadline: float | None = None
    rows: int = 1
    cost: float = 0.0
    key: Hashable = None
