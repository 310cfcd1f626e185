"""A batch: requests that run in one model call."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from celery_batch.batching.request import Request

__all__ = ["Batch", "Reason"]

T = TypeVar("T")


class Reason(StrEnum):
    """Why a batch left the queue."""

    FULL = "full"  # no further request fits
    URGENT = "urgent"  # it goes before less urgent requests that do not fit beside it
    TIMEOUT = "timeout"  # its oldest request had waited max_wait
    IDLE = "idle"  # no request arrived for linger seconds
    DRAINED = "drained"  # no more requests will come
    ALONE = "alone"  # its only request may be the one that kills processes


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """
    Requests for one model call, or for several if one of them is too large for one.

    Args:
        requests: Oldest first, never empty.
        reason: Why it left when it did.
        urgency: The most urgent of all requests that waited when it left, whether it is in
            this batch or not; a smaller number is more urgent.
        earned_part: The part of a batch that these requests have earned while more urgent ones
            overtook them.
    """

    requests: tuple[Request[T], ...]
    reason: Reason
    urgency: int = 0
    earned_part: float = 0.0

    @property
    def items(self) -> list[T]:
        """The inputs of the model, oldest first."""
        return [request.item for request in self.requests]

    @property
    def is_suspect(self) -> bool:
        """Whether its only request may be the one that kills processes."""
        return self.requests[0].alone

    @property
    def key(self) -> Hashable:
        """What its requests have in common, where batches are formed by key."""
        return self.requests[0].key

    @property
    def rows(self) -> int:
        """The number of rows in all requests."""
        return sum(request.rows for request in self.requests)

    def __len__(self) -> int:
        return len(self.requests)
