"""The unit of batching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Request"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """
    An item waiting for an answer.

    Args:
        item: What the model is asked; the batcher never looks inside.
        arrived: When it came, in seconds of the caller's monotonic clock.
    """

    item: T
    arrived: float
