"""The unit of batching."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

__all__ = ["Request"]

T = TypeVar("T")


class Request(NamedTuple, Generic[T]):  # a frozen dataclass costs three times as much to make
    """
    An item, or a chunk of many, waiting for an answer.

    Args:
        item: What the model is asked; the batcher never looks inside.
        arrived: When it came, in seconds of the caller's monotonic clock.
        urgency: Smaller goes first; within one urgency, first come, first served.
        alone: It was in a batch that took its process down, and may be the reason:
            it goes through the model without company.
        deadline: When its answer stops being wanted, on the clock of `arrived`; only
            who goes alone has one.
        rows: How many items it stands for, at least 1.
    """

    item: T
    arrived: float
    urgency: int = 0
    alone: bool = False
    deadline: float | None = None
    rows: int = 1
