"""Requests that go through the model together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from celery_batch.batching.request import Request

__all__ = ["Batch", "Reason"]

T = TypeVar("T")


class Reason(StrEnum):
    """Why a batch left."""

    FULL = "full"  # it could not grow any more
    URGENT = "urgent"  # it went before others, who did not fit in beside it
    TIMEOUT = "timeout"  # its oldest request had waited max_wait
    IDLE = "idle"  # no request arrived for linger seconds
    DRAINED = "drained"  # nobody else will come
    ALONE = "alone"  # its one request may be what takes processes down


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """
    Requests for one model call, or for several if one of them is too large for one.

    Args:
        requests: Oldest first, never empty.
        reason: Why it left when it did.
        urgency: Of the most urgent who waited then, whether it is in it or has stood
            back for those who are; smaller goes first.
        guaranteed: Which part of a batch these are owed, who were overtaken before.
    """

    requests: tuple[Request[T], ...]
    reason: Reason
    urgency: int = 0
    guaranteed: float = 0.0

    @property
    def items(self) -> list[T]:
        """What the model is asked, oldest first."""
        return [request.item for request in self.requests]

    @property
    def rows(self) -> int:
        """How many rows the model is given."""
        return sum(request.rows for request in self.requests)

    def __len__(self) -> int:
        return len(self.requests)
