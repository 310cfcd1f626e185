"""Requests, and the batches that run in one model call."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Generic, NamedTuple, TypeVar

__all__ = ["LEAST_URGENT", "Batch", "LimitReason", "Plan", "Reason", "Request", "SizeLimit"]

T = TypeVar("T")

#: Every request goes before one of this urgency.
LEAST_URGENT = 1 << 31


class Request(NamedTuple, Generic[T]):  # a frozen dataclass costs three times as much to make
    """An item, or a chunk of many rows, that waits for the model."""

    item: T  # the model's input; the batcher never looks inside
    arrived: float  # in seconds of the caller's monotonic clock
    urgency: int = 0  # a smaller number goes first; within one, first come, first served
    alone: bool = False  # its process may have died of it, so it runs without others
    #: Until when it may begin to run; only for one that runs again, alone, after a time limit.
    deadline: float | None = None
    rows: int = 1
    #: Of its longest row if rows are padded, else of all its rows.
    cost: float = 0.0
    key: Hashable = None  # where batches are formed by key, only equal keys share one
    #: Whether its worker may have died of it, or of one of those that were delivered again with it.
    redelivered: bool = False

    @property
    def is_suspect(self) -> bool:
        """Whether it shares a batch with no request that is not suspected."""
        return self.alone or self.redelivered


class Reason(StrEnum):
    """Why a batch left the queue."""

    FULL = "full"  # no further request fits
    URGENT = "urgent"  # it goes before less urgent requests that do not fit beside it
    TIMEOUT = "timeout"  # its oldest request had waited max_wait
    AHEAD = "ahead"  # the running batch will end at once, as far as is known
    IDLE = "idle"  # no request arrived for linger seconds
    ALONE = "alone"  # its only request may be the one that kills processes


class LimitReason(StrEnum):
    """Why batches may be as large as they may."""

    LEARNING = "learning"  # too few batches are known, so the policy decides
    POLICY = "policy"  # as large as the policy allows
    TARGET = "target"  # a larger batch would miss the target
    PRIORITIES = "priorities"  # less urgent requests fill batches up
    OVERLOAD = "overload"  # the oldest request is late in any case
    UNREACHABLE = "unreachable"  # even the smallest batch misses the target


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The most work in a batch, in the unit of `BatchPolicy.max_batch_work`, and why."""

    work: float
    why: LimitReason


@dataclass(slots=True, eq=False)
class Plan:
    """What was expected of a batch when it left."""

    work: float  # its rows, or its cost with padding
    limit: SizeLimit  # how much it might have been
    a: float  # seconds of a call, as far as they were known
    b: float  # seconds of each unit of work in it
    predicted: float  # seconds from the sending of its oldest request to the stored result
    left_at: float
    began: float = inf  # when it began to run; infinite while it is behind others

    @property
    def facts(self) -> tuple[float, float, float, str, float]:
        """What was known and chosen, as plain data."""
        limit = min(self.limit.work, sys.maxsize)
        return self.a, self.b, limit, str(self.limit.why), self.predicted

    def seconds_left(self, now: float) -> float:
        """Return for how many more seconds it will run."""
        seconds = self.a + self.b * self.work
        return max(seconds - max(now - self.began, 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Requests for one model call, or for several if one of them is too large for one."""

    requests: tuple[Request[T], ...]  # oldest first, never empty
    reason: Reason
    urgency: int = 0  # of the most urgent request that waited when it left, in it or not
    #: The part of a batch that these requests have earned while more urgent ones overtook them.
    earned_part: float = 0.0
    plan: Plan | None = None  # where the requests have a latency target

    @property
    def items(self) -> list[T]:
        """The inputs of the model, oldest first."""
        return [request.item for request in self.requests]

    @property
    def is_suspect(self) -> bool:
        """Whether a request in it may be one that kills processes."""
        return self.requests[0].is_suspect

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
